"""Carry what was found about records from where batches are made to the training process.

A batch about which there is nothing to say travels as it is. Any other is wrapped, and unwrapped by accelerate itself
when it moves the batch to the device: what is on the list then depends on the batches that were used alone, and
not on how far ahead the workers happened to be. Loaders that do not move batches unwrap them on arrival.
"""

from __future__ import annotations

import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from .quarantine import BadRecord
from .record_reading import Remark


class Finder(Protocol):
    """What reads records and remembers what it found."""

    name: str

    @property
    def total(self) -> int:
        """How many records there are."""

    def take_found(self) -> tuple[BadRecord, ...]:
        """Return the records left out since the last call."""

    def take_remarks(self) -> tuple[Remark, ...]:
        """Return the remarks since the last call."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is to be said about one batch."""

    dataset: str
    total: int
    records: tuple[BadRecord, ...]
    remarks: tuple[Remark, ...]


_inboxes: dict[str, deque[Findings]] = {}
"""Where findings arrive, by address; only the training process has any."""


@dataclass
class Inbox:
    """The training process's end: what has arrived and was not looked at yet."""

    address: str = field(default_factory=lambda: uuid.uuid4().hex)

    def open(self) -> None:
        """Begin to receive."""
        _inboxes[self.address] = deque()

    def close(self) -> None:
        """Stop receiving; what still comes is dropped."""
        _inboxes.pop(self.address, None)

    def take(self) -> list[Findings]:
        """Return what has arrived, oldest first."""
        waiting = _inboxes.get(self.address, deque())
        return [waiting.popleft() for _ in range(len(waiting))]


def _receive(address: str, findings: Findings) -> None:
    waiting = _inboxes.get(address)
    if waiting is not None:
        waiting.append(findings)


class Delivery:
    """A batch together with what is to be said about it."""

    def __init__(self, batch: Any, findings: Findings, address: str) -> None:
        self.batch = batch
        self.findings = findings
        self.address = address

    def pin_memory(self) -> Delivery:
        """Stay in pageable memory; torch asks batches of unknown kind, and this one is rare."""
        return self

    def to(self, device: Any, **kwargs: Any) -> Any:
        """Move the batch to a device, as accelerate asks for, and hand in what is to be said about it."""
        from accelerate.utils import send_to_device

        _receive(self.address, self.findings)
        return send_to_device(self.batch, device, **kwargs)


def _arrive(batch: Any, findings: Findings, address: str) -> Any:
    _receive(address, findings)
    return batch


class _OnArrival(Delivery):
    """Becomes the batch itself as it reaches the training process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrive, (self.batch, self.findings, self.address)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hands batches over from where they are made."""

    address: str
    moves_batches: bool
    """Whether the loader asks each batch to move to the device when it is used."""

    def __call__(self, batch: Any, finder: Finder) -> Any:
        """Return the batch, wrapped where something was found while it was made."""
        records, remarks = finder.take_found(), finder.take_remarks()
        if not records and not remarks:
            return batch
        findings = Findings(finder.name, finder.total, records, remarks)
        if self.moves_batches:
            return Delivery(batch, findings, self.address)
        from torch.utils.data import get_worker_info

        if get_worker_info() is None:  # made in the training process itself
            return _arrive(batch, findings, self.address)
        return _OnArrival(batch, findings, self.address)

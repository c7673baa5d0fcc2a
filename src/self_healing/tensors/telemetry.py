"""Numbers from the device, read on the host some steps later and never waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class _Slot:
    """A place in pinned memory and the event that says when the copy into it is complete."""

    host: Tensor
    event: torch.cuda.Event


class TelemetryRing:
    """The newest `size` vectors on their way from the device to the host, oldest first.

    A vector that is not read before `size` newer ones were pushed is given up and counted in `lost`: pushing neither
    waits nor grows, whatever the reader does.
    """

    def __init__(self, size: int = 64) -> None:
        if size < 1:
            raise ValueError(f"a ring needs at least one place, not {size!r}")
        self.size = size
        self.lost = 0
        self._waiting: deque[tuple[int, _Slot | Tensor | list[float]]] = deque()
        self._free: list[_Slot] = []
        self._offered: _Slot | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def place(self, width: int, device: torch.device) -> Tensor | None:
        """Return pinned memory that a kernel may write the next vector to; None where the device needs none."""
        if device.type != "cuda":
            return None
        if self._offered is None or self._offered.host.shape != (width,):
            self._offered = self._slot_for(torch.Size((width,)), torch.float32)
        return self._offered.host

    def push(self, step: int, vector: Tensor | list[float]) -> None:
        """Send a one-dimensional vector on its way, or numbers that the host has already; neither must be written to.

        The vector may be the one `place` returned, with a kernel that writes it already in the current stream.
        """
        if len(self._waiting) >= self.size:
            # Copies of one stream finish in order, so the place can be used again before its old copy is complete.
            self._release(self._waiting.popleft()[1])
            self.lost += 1
        offered = self._offered
        if offered is not None and vector is offered.host:
            self._offered = None
            offered.event.record()
            self._waiting.append((step, offered))
        elif isinstance(vector, list):
            self._waiting.append((step, vector))
        else:
            vector = vector.detach()
            self._waiting.append((step, self._send(vector) if vector.is_cuda else vector))

    def ready(self) -> list[tuple[int, list[float]]]:
        """Return (step, values) of the vectors that have arrived since the last call, without waiting."""
        arrived = []
        while self._waiting and _has_arrived(self._waiting[0][1]):
            arrived.append(self._take())
        return arrived

    def drain(self, *, but_newest: int = 0) -> list[tuple[int, list[float]]]:
        """Wait for all vectors, but for the newest few, and return them."""
        arrived = []
        while len(self._waiting) > but_newest:
            _, place = self._waiting[0]
            if isinstance(place, _Slot):
                place.event.synchronize()
            arrived.append(self._take())
        return arrived

    def _send(self, vector: Tensor) -> _Slot:
        # In the training stream: a stream of its own was measured to cost the host 140 microseconds more per step,
        # to save the device three.
        slot = self._slot_for(vector.shape, vector.dtype)
        slot.host.copy_(vector, non_blocking=True)
        slot.event.record(torch.cuda.current_stream(vector.device))
        return slot

    def _slot_for(self, shape: torch.Size, dtype: torch.dtype) -> _Slot:
        for i, slot in enumerate(self._free):
            if slot.host.shape == shape and slot.host.dtype == dtype:
                return self._free.pop(i)
        return _Slot(torch.zeros(shape, dtype=dtype, pin_memory=True), torch.cuda.Event())

    def _take(self) -> tuple[int, list[float]]:
        step, place = self._waiting.popleft()
        if isinstance(place, list):
            return step, place
        values: list[float] = (place.host if isinstance(place, _Slot) else place).tolist()
        self._release(place)
        return step, values

    def _release(self, place: _Slot | Tensor | list[float]) -> None:
        if isinstance(place, _Slot):
            self._free.append(place)


def _has_arrived(place: _Slot | Tensor | list[float]) -> bool:
    if not isinstance(place, _Slot):
        return True
    arrived: bool = place.event.query()
    return arrived

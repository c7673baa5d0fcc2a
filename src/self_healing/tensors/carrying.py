"""The way from a device to the host, travelled so that training's own transfers get through.

A device carries transfers to the host one after the other, in the order in which they were asked for: a single number
that training reads waits for all of a snapshot that was sent at once. So a snapshot is sent in chunks, each when the
one before has arrived. A loop of torch's own does that, which needs python's lock for a group of chunks only once.
Small chunks go together, and one group of them is asked for while the one before is on its way.

What is staged sets out a little later, because training begins a step by reading a number or two: after that the host
is not ahead of the device, and a copy delays training most (measured; the full bus is our guess at why). Who waits for a snapshot has it sent
at once, and all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from .chunks import Group, groups_of
from .host_layout import Piece
from .side_stream import measuring_stream, side_stream
from .staging import Staging

LOOK_S = 2e-4
"""How often it is looked whether a device has come to where a snapshot was taken."""
HEAD_START_S = 5e-3
"""How long training goes on before what was staged sets out: by then the host is ahead of the device again."""


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A piece that is ready to be carried to the host once a device has come to an event."""

    piece: Piece
    memory: Tensor | None
    """The copy on the device; None where the tensors themselves are read."""
    ready: torch.cuda.Event
    staging: Staging | None = None
    """How the copy was made, where it was measured on the way, ..."""
    squares: Tensor | None = None
    """... and the sums of squares that came of it."""

    def groups(self) -> Iterable[Group]:
        """Return everything in chunks."""
        if self.memory is None:
            return self.piece.groups()
        return groups_of([(self.piece.memory, self.memory)])


def staged(piece: Piece, staging: Staging | None) -> Load | None:
    """Copy a piece on its device; None where there is no room for it."""
    squares = None
    try:
        memory = torch.empty(piece.end - piece.start, dtype=torch.uint8, device=piece.device)
        if staging is None:
            piece.copy_to(memory)
        else:
            squares = staging.copy_to(memory)
    except torch.cuda.OutOfMemoryError:
        return None
    return Load(piece, memory, torch.cuda.current_stream().record_event(), staging, squares)


class Shipment:
    """What devices carry to the host for one snapshot; sent by another thread than the one that waits for it."""

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self._being_read: list[Load] = []
        """Those without a copy of their own: they keep the memory that a device may not have read yet."""
        self.devices: dict[torch.device, torch.cuda.Event] = {}
        """When each has read everything; recorded by the time that everything is sent."""
        self._is_sent = threading.Event()
        self._has_arrived = False
        self._failure: RuntimeError | None = None

    def carry(self, measure: Callable[[Load], None]) -> None:
        """Carry everything to the host, and measure it on the way.

        The memory of each piece is the device's again as soon as it was read.
        """
        has_begun = False
        while self.loads:
            load = self.loads.pop(0)
            _wait_until_ready(load)
            if load.memory is None:
                self._being_read.append(load)
            elif not has_begun:
                hurry.wait(HEAD_START_S)
            has_begun = True
            _carry(load, measure)
            if load.memory is not None:
                load.memory.record_stream(side_stream(load.piece.device))

    def all_sent(self) -> None:
        """Note that nothing more will be read, be it to measure it."""
        for device, event in self.devices.items():
            side_stream(device).wait_stream(measuring_stream(device))
            event.record(side_stream(device))
        self._is_sent.set()

    def failed(self, error: RuntimeError) -> None:
        """Note that it will never arrive."""
        self._failure = error
        self._is_sent.set()

    def is_there(self) -> bool:
        """Say whether everything has arrived."""
        return self._is_sent.is_set() and all(event.query() for event in self.devices.values())

    def wait_until_sent(self, seconds: float | None = None) -> float | None:
        """Wait, so long at the most, until everything is on its way, and have that done at once; return what is left."""
        began_s = time.monotonic()
        if not self._is_sent.is_set():
            with hurry:
                self._is_sent.wait(seconds)
        return None if seconds is None else max(0.0, seconds - (time.monotonic() - began_s))

    def wait(self) -> None:
        """Wait until everything has arrived."""
        if self._has_arrived:
            return
        self.wait_until_sent()
        if self._failure is not None:
            raise RuntimeError(f"this snapshot did not arrive in host memory: {self._failure}") from self._failure
        for event in self.devices.values():
            event.synchronize()
        self._being_read.clear()
        self._has_arrived = True

    def wait_before_write(self) -> None:
        """Have the current stream of each device wait for it; the host goes on when the rest is sent."""
        if self.is_there():
            return
        self.wait_until_sent()
        for device, event in self.devices.items():
            torch.cuda.current_stream(device).wait_event(event)


class _Hurry:
    """Entered by those who cannot go on before everything is sent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_on = threading.Event()

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *_: object) -> None:
        self._change(-1)

    def _change(self, by: int) -> None:
        with self._lock:
            self._waiting += by
            (self._is_on.set if self._waiting else self._is_on.clear)()

    def is_on(self) -> bool:
        return self._is_on.is_set()

    def wait(self, seconds: float) -> None:
        self._is_on.wait(seconds)


hurry = _Hurry()
"""What is under way is sent at once, and all of it, as long as somebody is in it."""


def _wait_until_ready(load: Load) -> None:
    side = side_stream(load.piece.device)
    while not (hurry.is_on() or (load.ready.query() and side.query())):  # what waits within torch cannot be told to
        hurry.wait(LOOK_S)


def _carry(load: Load, measure: Callable[[Load], None]) -> None:
    """Carry a piece to the host group by group; returns when it is there, or sent in a hurry."""
    with _after(load) as side:
        before: torch.cuda.Event | None = None
        if load.memory is not None:
            measure(load)  # of a copy that was measured on the way there is hardly anything left to do
        for number, group in enumerate(load.groups()):
            is_measured_now = number == 0 and load.memory is None
            is_together = is_measured_now or group.is_all_small
            _copy(group, side, is_waited_for=not (is_together or hurry.is_on()))
            if is_measured_now:
                measure(load)
            if is_together:
                sent = side.record_event(torch.cuda.Event(blocking=True))
                if before is not None and not hurry.is_on():
                    before.synchronize()
                before = sent


def carry_at_once(load: Load) -> None:
    """Send a piece without a copy of its own on its way; whoever is given its memory has to wait until it was read."""
    with _after(load) as side:
        for group in load.groups():
            group.copy(is_waited_for=False)
        for place in (place for run in load.piece.runs for place in run.places):
            if place.source is not None:
                place.source.record_stream(side)


@contextmanager
def _after(load: Load) -> Iterator[torch.cuda.Stream]:
    """Do something on the side, when a piece is ready."""
    side = side_stream(load.piece.device)
    with torch.cuda.stream(side):
        side.wait_event(load.ready)
        yield side


def _copy(group: Group, side: torch.cuda.Stream, *, is_waited_for: bool) -> None:
    # Whoever looks for synchronisations means those of training, and is not told of this thread's.
    is_watched = torch.cuda.get_sync_debug_mode() != 0
    group.copy(is_waited_for=is_waited_for and not is_watched)
    if is_waited_for and is_watched:
        side.record_event(torch.cuda.Event(blocking=True)).synchronize()

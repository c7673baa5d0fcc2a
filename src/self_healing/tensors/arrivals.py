"""What is done about a snapshot after training has gone on: its norms are computed, its memory is hashed.

Threads that live on do it one thing after the other: to start a thread takes the one that starts it a tenth of a
millisecond. All that takes long in them leaves python's lock to others: the device, torch's operations, the hashes.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import torch
from torch import Tensor

from .carrying import Load, hurry
from .host_layout import Piece, Place, Run
from .norms import HALF
from .side_stream import measuring_stream

logger = logging.getLogger("self_healing.snapshots")


class Worker:
    """A thread that is started when it is first needed, and that the process does not wait for at its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, job: Callable[[], None]) -> None:
        """Have something done after all that was asked for before."""
        if not self.is_alive():  # also in a process that was forked
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(target=self._run, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def is_alive(self) -> bool:
        """Say whether it was needed so far."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until everything so far is done and let go of."""
        is_done = threading.Event()
        self.do(is_done.set)
        is_done.wait()

    @staticmethod
    def _run(jobs: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            job = jobs.get()
            job()
            del job  # it holds a snapshot


arriving = Worker("snapshot-arrives")
hashing = Worker("snapshot-is-hashed")
pinning = Worker("memory-is-pinned")


AT_EXIT_S = 10.0


@atexit.register
def _leave() -> None:
    """Let what is under way end before the device is given up, unless it hangs."""
    is_done = threading.Event()
    if arriving.is_alive():
        arriving.do(is_done.set)
        is_done.wait(AT_EXIT_S)


def wait_for_devices() -> None:
    """Wait until devices have their memory back that snapshots were staged in: somebody has found too little."""
    if arriving.is_alive():
        with hurry:
            arriving.wait()


def wait_for_workers() -> None:
    """Wait until nothing more is done about any snapshot."""
    wait_for_devices()
    hashing.wait()


# -- norms -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Norms that are on their way, in double precision, whose they are, and where they are computed."""

    places: list[Place]
    norms: Tensor
    stream: torch.cuda.Stream | None


@torch.no_grad()
def measure_loads(loads: Sequence[Load]) -> list[Measured]:
    """Measure what is to be carried to the host, beside that; a copy may be let go of when this returns."""
    found: list[Measured] = []
    for each in loads:
        stream = measuring_stream(each.piece.device)
        with torch.cuda.stream(stream):
            stream.wait_event(each.ready)
            if each.memory is None:
                found += _measured_in_place(each.piece, stream)
                continue
            others = each.piece.runs
            if each.staging is not None and each.squares is not None:
                found.append(Measured(each.staging.places, each.squares.sqrt(), stream))
                each.squares.record_stream(stream)
                others = each.staging.others
            found += measure_copy(each.piece, each.memory, stream, others)
            each.memory.record_stream(stream)
    return found


def measure_copy(
    piece: Piece, memory: Tensor, stream: torch.cuda.Stream | None = None, only: Sequence[Run] | None = None
) -> list[Measured]:
    """Measure what was copied of a piece."""
    runs = [(run, run.measured()) for run in (piece.runs if only is None else only)]
    return [_measured(places, run.to_measure(memory, piece.start), stream) for run, places in runs if places]


def _measured_in_place(piece: Piece, stream: torch.cuda.Stream) -> list[Measured]:
    runs = [run.measured() for run in piece.runs]
    return [_measured(places, [p.source for p in places if p.source is not None], stream) for places in runs if places]


def _measured(places: list[Place], values: list[Tensor], stream: torch.cuda.Stream | None) -> Measured:
    # Half precision in single precision, where it cannot overflow.
    wide = torch.float32 if places[0].dtype in HALF else None
    return Measured(places, torch.stack(torch._foreach_norm(values, 2.0, wide)).double(), stream)  # noqa: SLF001


def read(found: Sequence[Measured], numbers: Callable[[int], Tensor]) -> dict[Place, float]:
    """Return norms as numbers, by way of pinned memory that `numbers` gives; waits for nothing but their streams."""
    on_device = [each for each in found if each.stream is not None]
    read = {
        p: norm
        for each in found
        if each.stream is None
        for p, norm in zip(each.places, each.norms.tolist(), strict=True)
    }
    if not on_device:
        return read
    memory = numbers(sum(len(each.places) for each in on_device))
    parts = memory.split([len(each.places) for each in on_device])
    for part, each in zip(parts, on_device, strict=True):
        with torch.cuda.stream(each.stream):
            part.copy_(each.norms, non_blocking=True)
    for stream in {each.stream for each in on_device}:
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        event.synchronize()
    whose = [place for each in on_device for place in each.places]
    return read | dict(zip(whose, memory.tolist(), strict=True))

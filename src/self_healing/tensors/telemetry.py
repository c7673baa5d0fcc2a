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
        self._waiting: deque[tuple[int, _Slot | Tensor]] = deque()
        self._free: list[_Slot] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, step: int, vector: Tensor) -> None:
        """Send a one-dimensional vector on its way; it must not be written to afterwards."""
        vector = vector.detach()
        if len(self._waiting) >= self.size:
            # Copies of one stream finish in order, so the place can be used again before its old copy is complete.
            self._release(self._waiting.popleft()[1])
            self.lost += 1
        self._waiting.append((step, self._send(vector) if vector.is_cuda else vector))

    def ready(self) -> list[tuple[int, list[float]]]:
        """Return (step, values) of the vectors that have arrived since the last call, without waiting."""
        arrived = []
        while self._waiting and _has_arrived(self._waiting[0][1]):
            arrived.append(self._take())
        return arrived

    def drain(self) -> list[tuple[int, list[float]]]:
        """Wait for all vectors and return them."""
        arrived = []
        while self._waiting:
            _, place = self._waiting[0]
            if isinstance(place, _Slot):
                place.event.synchronize()
            arrived.append(self._take())
        return arrived

    def _send(self, vector: Tensor) -> _Slot:
        slot = self._slot_for(vector)
        stream = self._streams.get(vector.device)
        if stream is None:
            stream = self._streams[vector.device] = torch.cuda.Stream(vector.device)
        # Off the training stream, so that the copy holds up no kernel that comes after it.
        stream.wait_stream(torch.cuda.current_stream(vector.device))
        with torch.cuda.stream(stream):
            slot.host.copy_(vector, non_blocking=True)
            slot.event.record(stream)
        # The allocator must not hand the vector's memory out again before the copy is complete.
        vector.record_stream(stream)
        return slot

    def _slot_for(self, vector: Tensor) -> _Slot:
        for i, slot in enumerate(self._free):
            if slot.host.shape == vector.shape and slot.host.dtype == vector.dtype:
                return self._free.pop(i)
        event = torch.cuda.Event()
        return _Slot(torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True), event)

    def _take(self) -> tuple[int, list[float]]:
        step, place = self._waiting.popleft()
        values: list[float] = (place.host if isinstance(place, _Slot) else place).tolist()
        self._release(place)
        return step, values

    def _release(self, place: _Slot | Tensor) -> None:
        if isinstance(place, _Slot):
            self._free.append(place)


def _has_arrived(place: _Slot | Tensor) -> bool:
    if not isinstance(place, _Slot):
        return True
    arrived: bool = place.event.query()
    return arrived

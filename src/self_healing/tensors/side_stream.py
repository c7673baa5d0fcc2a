"""What snapshots ask of a GPU: room, a stream to carry them away, and that an optimizer waits before it writes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from .copies import Copies
from .skip import innermost

MARGIN_BYTES = 1 << 30
"""What must stay free on a device besides a staged copy."""


@dataclass
class _Busiest:
    """What is known of how much a device needs at the busiest moment of a step."""

    peak_bytes: int
    """The most that was in use while nothing was staged."""
    ooms: int
    staged_bytes: int = 0
    """The most that was staged since: the peak may hold as much of it."""


_busiest: dict[torch.device, _Busiest] = {}


def has_room(device: torch.device, nbytes: int) -> bool:
    """Say whether a device can hold so much more even at the busiest moment of a step so far.

    Between two steps, when this is asked, much is free that the next one needs. Where memory has run out since something
    was first staged, it is not risked again.
    """
    free, total = torch.cuda.mem_get_info(device)
    stats = torch.cuda.memory_stats(device)
    peak, ooms = stats["allocated_bytes.all.peak"], stats["num_ooms"]
    known = _busiest.setdefault(device, _Busiest(peak, ooms))
    if not known.staged_bytes:
        known.peak_bytes, known.ooms = peak, ooms
    usable = min(free + stats["reserved_bytes.all.current"], int(_most_of(device) * total))
    needed = max(known.peak_bytes, peak - known.staged_bytes) + nbytes + MARGIN_BYTES
    if ooms > known.ooms or usable < needed:
        return False
    known.staged_bytes = max(known.staged_bytes, nbytes)
    return True


def _most_of(device: torch.device) -> float:
    """Return the share of a device that this process may use."""
    asked = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # not in all versions
    return 1.0 if asked is None else float(asked(device))


_side_streams: dict[torch.device, torch.cuda.Stream] = {}


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which a device carries snapshots away: one, so that they never overtake one another."""
    if device not in _side_streams:
        _side_streams[device] = torch.cuda.Stream(device)
    return _side_streams[device]


_measuring_streams: dict[torch.device, torch.cuda.Stream] = {}


def measuring_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which staged copies are measured, so that no norm waits for the way to the host."""
    if device not in _measuring_streams:
        _measuring_streams[device] = torch.cuda.Stream(device)
    return _measuring_streams[device]


_held_back: weakref.WeakKeyDictionary[Optimizer, list[weakref.ref[Copies]]] = weakref.WeakKeyDictionary()


def hold_back(optimizer: Optimizer, copies: Copies) -> bool:
    """Have the next step of an optimizer wait for copies; say whether it can be told to."""
    optimizer = innermost(optimizer)
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return False
    if optimizer not in _held_back:
        _held_back[optimizer] = []
        optimizer.register_step_pre_hook(_wait_before_step)
    _held_back[optimizer].append(weakref.ref(copies))
    return True


def _wait_before_step(optimizer: Optimizer, *_: Any) -> None:
    waiting = _held_back[optimizer]
    for each in waiting:
        copies = each()
        if copies is not None:
            copies.wait_before_write()
    waiting.clear()

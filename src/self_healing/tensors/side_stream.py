"""What snapshots ask of a GPU: room, a stream to carry them away, and that an optimizer waits before it writes."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import Optimizer

from .copies import Copies
from .skip import innermost

MARGIN_BYTES = 1 << 30
"""What must stay free on a device besides a staged copy."""


def has_room(device: torch.device, nbytes: int) -> bool:
    """Say whether a device can hold so much more."""
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + idle >= nbytes + MARGIN_BYTES


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

"""Tensors out of a state that another process has left in shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """Where a tensor lies; all of it was looked at by whoever read the state."""

    @property
    def dtype(self) -> str:
        """Its type."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""

    @property
    def stride(self) -> Sequence[int] | None:
        """Its stride, None where the elements follow one another."""

    @property
    def device(self) -> str:
        """The kind of device it was on."""

    @property
    def nbytes(self) -> int:
        """Its size."""


class Readable(Protocol):
    """A state that tensors can be read from."""

    @property
    def tensors(self) -> Mapping[str, Mark]:
        """What there is."""

    def read_into(self, name: str, target: memoryview) -> None:
        """Read a tensor to where there is room for it."""


def read_tensor(state: Readable, name: str) -> Tensor:
    """Return a tensor with memory of its own, as it was captured.

    Raises:
        KeyError: there is no tensor of that name.

    """
    mark = state.tensors[name]
    dtype = getattr(torch, mark.dtype)
    assert isinstance(dtype, torch.dtype), "a reader lets no other types pass"
    memory = torch.empty(mark.nbytes, dtype=torch.uint8)
    if mark.nbytes:
        state.read_into(name, memoryview((ctypes.c_ubyte * mark.nbytes).from_address(memory.data_ptr())))
    flat = memory.view(dtype)
    return flat.view(list(mark.shape)) if mark.stride is None else flat.as_strided(list(mark.shape), list(mark.stride))

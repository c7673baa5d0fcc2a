"""Where in the memory of a snapshot each tensor goes.

Tensors lie one behind the other in the order of memory. They are copied as integers, so that whatever bits a NaN is
made of arrive, and sorted by the widest integer their size is a multiple of, so that each is aligned without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .chunks import Group, groups_of
from .copies import has_shared_elements
from .host_memory import HostBlock

UNITS = {16: torch.int64, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
"""As what a tensor is copied whose size is a multiple of so many bytes; never less than one of its elements."""
ALIGNED_BYTES = 64
PIECE_BYTES = 1 << 30
"""The most that is staged in one allocation, unless one tensor is larger: pieces fit into what a device has free here
and there, and are given back one by one while the copy goes on."""


@dataclass(slots=True, eq=False)
class Place:
    """One tensor: where its values come from and where they go to."""

    source: Tensor | None
    """The tensor; None once it was copied."""
    device: torch.device
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...] | None
    """None where the values are set aside without gaps, in the order of their indices."""
    nbytes: int
    width: int
    """The key of its unit."""
    is_scattered: bool
    """Other things lie between its elements, or it does not lie where it can be copied as integers."""
    until_update: bool
    """Nothing but an update writes to it."""
    is_measured: bool = False
    """Its norm is of interest."""
    is_direct: bool = False
    """A device copies it from where it is, without a copy in between."""
    block: HostBlock | None = None
    offset: int = 0

    @classmethod
    def of(cls, tensor: Tensor, *, until_update: bool, is_measured: bool = False) -> Place:
        """Describe a tensor; it is not copied yet."""
        item = tensor.element_size()
        nbytes = tensor.numel() * item
        # As one number: what divides it divides the size, the address and the place in its storage.
        width = _width(nbytes | tensor.data_ptr() | int(tensor.storage_offset()) * item)
        is_contiguous = tensor.is_contiguous()
        is_scattered = width < item or not (is_contiguous or is_dense(tensor))
        return cls(
            tensor,
            tensor.device,
            tensor.dtype,
            tensor.shape,
            None if is_contiguous or is_scattered else tensor.stride(),
            nbytes,
            _width(nbytes) if is_scattered else width,
            is_scattered,
            until_update,
            is_measured,
        )

    def as_units(self) -> Tensor:
        """Return the elements in the order of memory, one-dimensional, as the integers they are copied as."""
        source = self.source
        assert source is not None, "copied twice"
        if self.is_scattered:
            source = source.clone(memory_format=torch.contiguous_format)
        flat = source.view(-1) if self.stride is None else source.as_strided((source.numel(),), (1,))
        return flat.view(UNITS[self.width])

    def values(self) -> Tensor:
        """Return what was set aside, as a view of the block."""
        if self.block is None:  # nothing is in it
            return torch.empty(self.shape, dtype=self.dtype)
        flat = self.block.bytes[self.offset : self.offset + self.nbytes].view(self.dtype)
        return flat.view(self.shape) if self.stride is None else flat.as_strided(self.shape, self.stride)


@dataclass(slots=True, eq=False)
class Run:
    """Places one behind the other, of one type, that are copied as the same integers."""

    start: int
    width: int
    dtype: torch.dtype
    places: list[Place] = field(default_factory=list)
    nbytes: int = 0
    _measured: list[Place] | None = None
    _flat: list[Tensor] | None = None
    """The tensors as what they are copied as: made once, unless some have to be put together anew each time."""

    def part(self, memory: Tensor, begins: int) -> Tensor:
        """Return its part of `memory`, which is what lies in the block from `begins` on."""
        start = self.start - begins
        return memory[start : start + self.nbytes]

    def views(self, memory: Tensor, begins: int) -> tuple[Tensor, ...]:
        """Return one view for each place, of the integers it is copied as."""
        units = self.part(memory, begins).view(UNITS[self.width])
        size = units.element_size()
        views: tuple[Tensor, ...] = units.split([place.nbytes // size for place in self.places])
        return views

    def copy_to(self, memory: Tensor, begins: int) -> None:
        """Copy all tensors in one operation, for which their number hardly matters."""
        torch.cat(self.flat(), out=self.part(memory, begins).view(UNITS[self.width]))

    def flat(self) -> list[Tensor]:
        """Return the tensors as they are now, one-dimensional, as the integers they are copied as."""
        if self._flat is not None:
            return self._flat
        flat = [place.as_units() for place in self.places]
        if not any(place.is_scattered for place in self.places):
            self._flat = flat
        return flat

    def measured(self) -> list[Place]:
        """Return the places whose norms are of interest."""
        if self._measured is None:
            self._measured = [place for place in self.places if place.is_measured]
        return self._measured

    def to_measure(self, memory: Tensor, begins: int) -> list[Tensor]:
        """Return the values of the places whose norms are of interest, as copied to `memory`."""
        size = self.dtype.itemsize
        values = self.part(memory, begins).view(self.dtype).split([place.nbytes // size for place in self.places])
        if len(self.measured()) == len(values):
            return list(values)
        return [each for each, place in zip(values, self.places, strict=True) if place.is_measured]


@dataclass(slots=True, eq=False)
class Piece:
    """What is copied at once: a part of a block, for tensors of one device."""

    block: HostBlock
    start: int
    device: torch.device
    is_direct: bool
    runs: list[Run] = field(default_factory=list)
    end: int = 0
    _groups: list[Group] | None = None
    """Where it is read without a copy in between: made once, because python's lock is needed for it."""

    @property
    def memory(self) -> Tensor:
        """Its part of the block, as bytes."""
        return self.block.bytes[self.start : self.end]

    def add(self, place: Place) -> None:
        """Put a tensor behind the last one."""
        if not self.runs or (self.runs[-1].width, self.runs[-1].dtype) != (place.width, place.dtype):
            self.runs.append(Run(_aligned(self.end or self.start), place.width, place.dtype))
        run = self.runs[-1]
        place.block, place.offset = self.block, run.start + run.nbytes
        run.places.append(place)
        run.nbytes += place.nbytes
        self.end = run.start + run.nbytes

    def copy_to(self, memory: Tensor) -> None:
        """Copy all of its tensors to memory on their device that is as large as its part of the block."""
        for run in self.runs:
            run.copy_to(memory, self.start)

    def groups(self) -> list[Group]:
        """Return all of its tensors in chunks, with where each goes to."""
        if self._groups is not None:
            return self._groups
        memory = self.memory
        parts = (part for run in self.runs for part in zip(run.views(memory, self.start), run.flat(), strict=True))
        groups = list(groups_of(parts))
        if self.is_direct:
            self._groups = groups
        return groups


class Filling:
    """A block that is being filled from its beginning, or from where something else ends."""

    def __init__(self, block: HostBlock, begin: int = 0) -> None:
        self.block = block
        self.begin = begin
        self.pieces: list[Piece] = []

    def take(self, place: Place) -> bool:
        """Give a tensor the next free place; say whether there is one."""
        piece = self.pieces[-1] if self.pieces else None
        end = _aligned(self.begin if piece is None else piece.end)
        if end + place.nbytes > self.block.capacity:
            return False
        if piece is None or not self._belongs(place, piece):
            piece = Piece(self.block, end, place.device, place.is_direct)
            self.pieces.append(piece)
        piece.add(place)
        return True

    @staticmethod
    def _belongs(place: Place, piece: Piece) -> bool:
        if (piece.device, piece.is_direct) != (place.device, place.is_direct):
            return False
        return place.device.type == "cpu" or piece.end - piece.start + place.nbytes <= PIECE_BYTES


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNED_BYTES) * ALIGNED_BYTES


def is_odd(tensor: Tensor) -> bool:
    """Say whether a tensor is more than its elements in memory, or several of its elements are one."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return True
    if tensor.device.type not in ("cpu", "cuda") or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return True
    return not tensor.is_contiguous() and has_shared_elements(tensor)


def is_dense(tensor: Tensor) -> bool:
    """Say whether the elements fill their stretch of memory, each having a place of its own."""
    dense: bool = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    return dense


def _width(of: int) -> int:
    """Return the largest power of two, up to 16, that divides a number."""
    return min(16, of & -of) or 16

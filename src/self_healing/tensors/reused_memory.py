"""Host memory that one snapshot after the other is copied into, and what the next one can take over from the last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .copies import Contents
from .host_layout import ALIGNED_BYTES, Filling, Piece, Place
from .host_memory import Backing, HostBlock
from .side_stream import has_room
from .staging import Staging

Way = Literal["auto", "staged", "direct"]
Entry = list[Any]
"""A tensor in words: its type, shape, stride, the number of its block and where it begins in that."""
HEADROOM_BYTES = 64 << 20
"""How much more memory is taken at most than is needed: counts and prepared inputs differ in size now and then."""


@dataclass(slots=True, eq=False)
class Bundle:
    """Tensors that were collected together; as long as they stay the same they are not collected again."""

    contents: Contents | None = None
    places: list[Place] = field(default_factory=list)
    known: dict[tuple[Any, ...], Place] = field(default_factory=dict)
    measured: list[tuple[str, Place]] = field(default_factory=list)
    named: list[tuple[str, Place]] = field(default_factory=list)
    """Each tensor by what it is called; one that was found twice is there twice."""
    odd: list[str] = field(default_factory=list)
    """Tensors that cannot lie in a slot."""
    nbytes: int = 0
    is_reusable: bool = True
    """Everything of it lies in the slot, and nothing of it belongs to another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrangement:
    """Where in a slot everything of some bundles goes, and how."""

    bundles: list[Bundle]
    way: Way
    pieces: list[Piece]
    is_direct: bool
    staging: dict[Piece, Staging | None] = field(default_factory=dict)
    """How those on devices are copied there."""
    described: dict[str, Entry] = field(default_factory=dict)
    """Where each tensor lies, in words, once somebody has asked, ..."""
    names: dict[Place, str] = field(default_factory=dict)
    """... and what it is called."""

    def is_for(self, bundles: Sequence[Bundle], way: Way) -> bool:
        """Say whether it is that of these bundles, in this order, and still the way to go."""
        is_same = way == self.way and list(map(id, bundles)) == list(map(id, self.bundles))
        return is_same and (way != "auto" or not self._room_has_changed())

    def _room_has_changed(self) -> bool:
        sizes: dict[torch.device, int] = {}
        for piece in self.pieces:
            if piece.device.type == "cuda":
                sizes[piece.device] = sizes.get(piece.device, 0) + piece.end - piece.start
        return bool(sizes) and self.is_direct == all(has_room(device, nbytes) for device, nbytes in sizes.items())


class HostSlot:
    """Reusable memory for one snapshot; what it held before is lost when the next one is copied into it.

    It grows by another block where a snapshot does not fit, and never moves: pinning memory takes a second for some
    gigabytes, and the first snapshot of a run has no moments yet. With a backing its memory is where others find it.
    """

    def __init__(self, backing: Backing | None = None) -> None:
        self.backing = backing
        self.generation = 0
        """How many snapshots it has held; all but the newest are gone."""
        self.gathered: dict[tuple[object, ...], Bundle] = {}
        """What the newest snapshot consists of, for the next one."""
        self.arrangement: Arrangement | None = None
        """Where that lies."""
        self._blocks: list[HostBlock] = []
        self._numbers: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """How much host memory it takes."""
        return sum(block.capacity for block in self._blocks)

    @property
    def is_shared(self) -> bool:
        """Whether other processes can find all of it."""
        return bool(self._blocks) and all(block.file is not None for block in self._blocks)

    def discard(self) -> None:
        """Have others find nothing of it any more; what still refers to its memory may go on doing so."""
        if self.backing is not None:
            self.backing.discard()

    def begin(self) -> int:
        """Begin with the next snapshot: nobody else may find the former one from now on. Return its number."""
        self.generation += 1
        if self.backing is not None:
            self.backing.withdraw()
        return self.generation

    def reserve(self, nbytes: int, *, pinned: bool) -> None:
        """Take memory in advance, so that the first snapshot does not have to wait for it."""
        missing = nbytes - sum(block.capacity for block in self._blocks if block.is_for_devices == pinned)
        if missing > 0:
            self._grow(missing, pinned=pinned)

    def lay_out(
        self, places: Iterable[Place], *, pinned: bool, after: Mapping[HostBlock, int] | None = None
    ) -> list[Piece]:
        """Give each tensor its place, behind what is there already; memory is added where it is too small."""
        # What is read directly comes first, so that what is staged lies together; else in the order it was given.
        ordered = sorted(places, key=lambda p: (p.device.index or 0, not p.is_direct, -p.width, str(p.dtype)))
        begins = after or {}
        filling = [Filling(block, begins.get(block, 0)) for block in self._blocks if block.is_for_devices == pinned]
        left_over = [place for place in ordered if not any(each.take(place) for each in filling)]
        if left_over:
            needed = sum(place.nbytes + ALIGNED_BYTES for place in left_over)
            filling.append(Filling(self._grow(needed, pinned=pinned)))
            fitted = [filling[-1].take(place) for place in left_over]
            assert all(fitted), "a new block has room for what it was made for"
        return [piece for each in filling for piece in each.pieces]

    def numbers(self, count: int) -> Tensor:
        """Return pinned memory for so many numbers."""
        if self._numbers is None or self._numbers.numel() < count:
            self._numbers = torch.empty(2 * count, dtype=torch.float64, pin_memory=True)
        return self._numbers[:count]

    def _grow(self, nbytes: int, *, pinned: bool) -> HostBlock:
        block = HostBlock(nbytes + min(nbytes // 8, HEADROOM_BYTES), pinned=pinned, backing=self.backing)
        self._blocks.append(block)
        return block

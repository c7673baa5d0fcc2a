"""What lies where in the memory of a snapshot, in words that another process understands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import host_memory
from .host_layout import Place
from .host_memory import HostBlock
from .reused_memory import Arrangement, Bundle, Entry

UNNAMED = "tensor"


@dataclass(frozen=True, slots=True)
class BlockUse:
    """A block of a snapshot: its file, its size, and the hashes of what is used of it."""

    file: str | None
    """None where no other process can find it."""
    size: int
    used: int
    hashes: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class Described:
    """A snapshot in words."""

    blocks: list[BlockUse]
    slice_bytes: int
    """What one hash covers."""
    fixed: Mapping[str, Entry]
    """The tensors that lie where they lay in the snapshot before: the same object each time."""
    others: Mapping[str, Entry]
    left_out: list[str]
    """Tensors that could not be put into the slot."""
    names: Mapping[Place, str]
    """What each tensor is called, by its place."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes can find all of it."""
        return all(block.file is not None for block in self.blocks)


def told_apart(named: Iterable[tuple[str, Place]], taken: Iterable[str] = ()) -> Iterator[tuple[str, Place]]:
    """Yield names that are used once each: the second of a name gets a number."""
    counts = dict.fromkeys(taken, 1)
    for wanted, place in named:
        name = wanted
        while name in counts:
            counts[wanted] += 1
            name = f"{wanted} ({counts[wanted]})"
        counts[name] = 1
        yield name, place


def describe(
    arrangement: Arrangement, loose: Bundle, used: Mapping[HostBlock, int], hashes: Sequence[int]
) -> Described:
    """Put a snapshot into words."""
    numbers = {block: number for number, block in enumerate(used)}
    if not arrangement.described:  # once, for there may be thousands
        fixed = list(told_apart(_named(arrangement.bundles)))
        arrangement.names.update((place, name) for name, place in reversed(fixed))
        arrangement.described.update((name, _entry(place, numbers)) for name, place in fixed)
    others = list(told_apart(_named([loose]), arrangement.described))
    left = iter(hashes)
    return Described(
        blocks=[
            BlockUse(block.file, block.capacity, size, [f"{next(left):016x}" for _ in block.slices(size)])
            for block, size in used.items()
        ],
        slice_bytes=host_memory.SLICE_BYTES,
        fixed=arrangement.described,
        others={name: _entry(place, numbers) for name, place in others},
        left_out=[name or UNNAMED for bundle in (*arrangement.bundles, loose) for name in bundle.odd],
        names={**{place: name for name, place in reversed(others)}, **arrangement.names},
    )


def _named(bundles: Iterable[Bundle]) -> Iterator[tuple[str, Place]]:
    return ((name or UNNAMED, place) for bundle in bundles for name, place in bundle.named)


def _entry(place: Place, numbers: Mapping[HostBlock, int]) -> Entry:
    stride = None if place.stride is None or not place.nbytes else list(place.stride)
    number = 0 if place.block is None else numbers[place.block]
    entry = [str(place.dtype).removeprefix("torch."), list(place.shape), stride, number, place.offset]
    return entry if place.device.type == "cpu" else [*entry, place.device.type]

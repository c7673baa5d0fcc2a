"""The chunks in which a snapshot travels from a device to the host, and which of them go together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

CHUNK_BYTES = 32 << 20
"""Little more than half a millisecond over PCIe 5, behind which the host's bookkeeping for the next one hardly shows."""
SMALL_BYTES = CHUNK_BYTES // 2
"""Below this the bookkeeping does show: such chunks are sent together, as many as are a small one."""
CHUNKS_AT_ONCE = 4
"""After so many it is looked whether somebody is in a hurry."""
CHUNKS_AT_FIRST = 1
"""How many are sent without being waited for, so that a piece is measured while they are on their way."""

Chunk = tuple[Tensor, Tensor]
"""Where to, and where from."""


@dataclass(slots=True, eq=False)
class Chunks:
    """Where to, and where from, in two lists as torch takes them."""

    targets: list[Tensor] = field(default_factory=list)
    sources: list[Tensor] = field(default_factory=list)
    nbytes: int = 0

    def add(self, target: Tensor, source: Tensor, nbytes: int) -> None:
        """Add one."""
        self.targets.append(target)
        self.sources.append(source)
        self.nbytes += nbytes

    def copy(self, *, is_waited_for: bool) -> None:
        """Copy all of them, waiting for each before the next one, or for none."""
        if self.targets:
            torch._foreach_copy_(self.targets, self.sources, non_blocking=not is_waited_for)


@dataclass(slots=True, eq=False)
class Group:
    """Chunks that are copied before it is looked whether somebody is in a hurry."""

    room: int
    """For how many large ones."""
    small: Chunks = field(default_factory=Chunks)
    large: Chunks = field(default_factory=Chunks)

    def add(self, chunk: Chunk) -> None:
        """Add one."""
        nbytes = chunk[0].nbytes
        (self.small if nbytes < SMALL_BYTES else self.large).add(*chunk, nbytes)

    @property
    def is_full(self) -> bool:
        """Whether it is time to look, or training's transfers had to queue behind too many small ones."""
        return len(self.large.targets) >= self.room or self.small.nbytes >= SMALL_BYTES

    @property
    def is_all_small(self) -> bool:
        """Whether no chunk is worth being waited for."""
        return not self.large.targets

    @torch.no_grad()
    def copy(self, *, is_waited_for: bool) -> None:
        """Copy all of them; each large one is waited for before the next one is sent."""
        self.small.copy(is_waited_for=False)
        self.large.copy(is_waited_for=is_waited_for)


def groups_of(parts: Iterable[Chunk]) -> Iterator[Group]:
    """Return everything in chunks."""
    group = Group(CHUNKS_AT_FIRST)
    for target, source in parts:
        step = CHUNK_BYTES // target.element_size()
        for chunk in zip(target.split(step), source.split(step), strict=True):
            group.add(chunk)
            if group.is_full:
                yield group
                group = Group(CHUNKS_AT_ONCE)
    if group.small.targets or group.large.targets:
        yield group

"""An iterable dataset in the place of another one; the data loader only takes torch's own kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import IterableDataset


class Reader(Protocol):
    """What reads the original."""

    dataset: Any

    def begin(self) -> Iterator[Any]:
        """Start to read from the beginning."""


class GuardedStream(IterableDataset[Any]):
    """The records a reader gives; everything else is the original's own."""

    def __init__(self, reader: Reader) -> None:
        self.guarding = reader

    def __iter__(self) -> Iterator[Any]:
        return self.guarding.begin()

    def __len__(self) -> int:
        return len(self.guarding.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "guarding":  # a copy under construction has no reader yet
            raise AttributeError(name)
        return getattr(self.guarding.dataset, name)

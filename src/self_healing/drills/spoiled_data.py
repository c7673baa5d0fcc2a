"""A dataset some of whose records are not what they should be; goes along into worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class SpoiledRecords:
    """A map-style dataset that gives `spoil(record)` for one of its records."""

    def __init__(self, dataset: Any, index: int, spoil: Callable[[Any], Any]) -> None:
        self.dataset = dataset
        self.index = index
        self.spoil = spoil

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        record = self.dataset[index]
        return self.spoil(record) if index == self.index else record

"""Records that the model raises on, known by the row that a collator has made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .quarantine import BadRecord, bad_record, content_hash


@dataclass(frozen=True, slots=True)
class Suspect:
    """One row, and what is to be said of the record behind it."""

    row: Mapping[str, Any]
    """Plain numbers by field, with the padding that the batch had."""
    said: BadRecord

    @classmethod
    def of(cls, row: Mapping[str, Any], error: Exception, dataset: str) -> Suspect:
        """Keep what the exception says, and not the exception: it has to travel to the workers of a data loader."""
        return cls(row, bad_record(index=-1, record=row, dataset=dataset, where="model", error=error))

    def listed(self, index: int, record: Any) -> BadRecord:
        """Return the line for a record that was found to be this one."""
        return replace(self.said, index=index, hash=content_hash(record))

    def is_made_of(self, record: Any) -> bool:
        """Say whether a record has become this row: every field that both have agrees, padding aside."""
        if not isinstance(record, Mapping):
            return False
        shared = [
            (mine, theirs)
            for name, mine in self.row.items()
            if isinstance(mine, list) and mine and (theirs := _numbers(record.get(name))) is not None
        ]
        return bool(shared) and all(self._agree(mine, theirs) for mine, theirs in shared)

    def _agree(self, mine: list[Any], theirs: list[Any]) -> bool:
        if mine == theirs:
            return True
        padding = len(mine) - len(theirs)
        if padding <= 0 or not theirs:
            return False
        mask = self.row.get("attention_mask")
        kept = [1] * len(mine) if not isinstance(mask, list) or len(mask) != len(mine) else mask
        sides = (
            (mine[: len(theirs)], mine[len(theirs) :], kept[len(theirs) :]),
            (mine[padding:], mine[:padding], kept[:padding]),
        )
        for content, rest, rest_kept in sides:
            is_padding = not any(rest_kept) or (kept is not mask and len(set(rest)) == 1)
            if content == theirs and is_padding:
                return True
        return False


def _numbers(value: Any) -> list[Any] | None:
    """Return a record's field as plain numbers; None where it is something else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return value if isinstance(value, list) else None

"""Which rows of a batch may count for something else in a loss that nobody knows: those with another class or weight.

A loss of a user's own may weigh classes, or rows by a field of theirs. Two rows of the same class say nothing of that, so
that rows with values which were never tried have to be tried too. A mean of the means of classes is only seen in three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .batch_cuts import Layout

TOGETHER = 4
"""Rows that are run together to see whether a rule for two holds for more."""
MOST_VALUES = 64
"""Different whole numbers of a field that are each looked at; beyond that only what is larger or smaller than all before."""


class RowKinds:
    """The values that rows were tried with, by field."""

    def __init__(self) -> None:
        self._seen: dict[str, set[float]] = {}

    def new_in(self, inputs: Mapping[str, Any], layout: Layout) -> list[int]:
        """Return the rows with values that were not tried yet, one for each value. Waits for the device."""
        found: dict[int, None] = {}
        for name, values in _per_row(inputs, layout).items():
            seen = self._seen.get(name, set())
            is_whole = all(float(value).is_integer() for value in values) and len(seen | set(values)) <= MOST_VALUES
            beyond = set(values) - seen
            if not is_whole:
                low, high = min(seen, default=float("inf")), max(seen, default=float("-inf"))
                beyond = {value for value in (min(values), max(values)) if not low <= value <= high}
            found.update(dict.fromkeys(values.index(value) for value in sorted(beyond)))
        return list(found)

    def tried(self, inputs: Mapping[str, Any], layout: Layout, rows: list[int]) -> None:
        """Remember the values of rows that were tried together."""
        for name, values in _per_row(inputs, layout).items():
            self._seen.setdefault(name, set()).update(values[row] for row in rows)

    def group(self, inputs: Mapping[str, Any], layout: Layout, *, at_least_one: bool = False) -> list[int] | None:
        """Return rows to be tried together: one with a new value, one of another kind, one more like it, any other."""
        new = self.new_in(inputs, layout) or ([0] if at_least_one else [])
        if not new:
            return None
        kinds = list(zip(*_per_row(inputs, layout).values(), strict=True)) or [()] * layout.rows
        others = [*new[1:], *(row for row in range(layout.rows) if row not in new)]
        unlike = [row for row in others if kinds[row] != kinds[new[0]]][:1]
        like = [row for row in others if kinds[row] == kinds[new[0]]][:1]
        chosen = [new[0], *unlike, *like]
        return (chosen + [row for row in others if row not in chosen])[:TOGETHER]


def _per_row(inputs: Mapping[str, Any], layout: Layout) -> dict[str, list[float]]:
    """Return the fields that hold one number for each row."""
    return {
        name: [float(number) for number in value.tolist()]
        for name, value in inputs.items()
        if getattr(value, "ndim", 0) == 1 and value.shape[0] == layout.rows and name not in layout.whole
    }

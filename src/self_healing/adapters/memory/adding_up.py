"""The ways in which a loss may add up its rows, and what each of them makes the rows of a batch count for.

Nothing here trusts a name: which of these a loss follows is seen by trying (`loss_weights`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .batch_cuts import Layout, Weight

IGNORED = -100
"""The label that torch's losses leave out unless told otherwise."""
MOST_ROWS = 32
"""Rows of a batch among which the two are looked for that tell the ways apart best."""


@dataclass(frozen=True, slots=True)
class AddingUp:
    """One way to add up rows, for one batch."""

    name: str
    weight: Weight
    amounts: tuple[int, ...]
    """What each row counts for; each one where rows simply add up."""

    def pair(self, first: int, second: int) -> tuple[float, float]:
        """Return what two rows count for when they are all there is."""
        shares = self.shares((first, second))
        return shares[0], shares[1]

    def shares(self, rows: Sequence[int]) -> tuple[float, ...]:
        """Return what some rows count for when they are all there is."""
        if self.weight is Weight.ONE:
            return (1.0,) * len(rows)
        total = sum(self.amounts[row] for row in rows)
        return tuple(self.amounts[row] / total if total else 0.0 for row in rows)

    def is_like(self, other: AddingUp) -> bool:
        """Say whether every piece of the batch counts for the same by the one and by the other."""
        if Weight.ONE in (self.weight, other.weight):
            return self.weight is other.weight
        mine, others = sum(self.amounts), sum(other.amounts)
        return all(a * others == b * mine for a, b in zip(self.amounts, other.amounts, strict=True))


def are_alike(ways: Sequence[AddingUp]) -> bool:
    """Say whether it does not matter for this batch which of the ways it is."""
    return all(way.is_like(ways[0]) for way in ways)


def ways_to_add_up(trainer: Any, inputs: Mapping[str, Any], layout: Layout) -> list[AddingUp]:
    """Return every way that is known of, with what the rows of this batch count for. Waits for the device."""
    rows = layout.rows
    found = [AddingUp("a sum", Weight.ONE, (1,) * rows), AddingUp("a mean over rows", Weight.ROWS, (1,) * rows)]
    for name, mask in _masks(trainer, inputs):
        if mask.shape[0] == rows:
            amounts = tuple(int(count) for count in mask.reshape(rows, -1).sum(1).tolist())
            found.append(AddingUp(f"a mean over {name}", Weight.LABELS, amounts))
    return found


def _masks(trainer: Any, inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what may be counted in a batch: true where something counts."""
    labels: Any = inputs.get("labels")
    if getattr(labels, "ndim", 0) > 0:
        yield from _with_and_without_the_first("labels", labels.ne(IGNORED))
    for name, value in inputs.items():  # a batch of somebody's own loop has names of its own, or none
        if name not in ("labels", "shift_labels") and _leaves_out(value):
            yield from _with_and_without_the_first(f"labels in {name}", value.ne(IGNORED))
    if getattr(labels, "ndim", 0) > 0:
        padding = getattr(getattr(trainer.model, "config", None), "pad_token_id", None)
        if isinstance(padding, int) and labels.ndim > 1 and not labels.is_floating_point():
            yield from _with_and_without_the_first(
                "labels that are no padding", labels.ne(IGNORED) & labels.ne(padding)
            )
    if getattr(inputs.get("shift_labels"), "ndim", 0) > 0:
        yield "shifted labels", inputs["shift_labels"].ne(IGNORED)
    for name in ("completion_mask", "attention_mask"):
        mask: Any = inputs.get(name)
        if getattr(mask, "ndim", 0) == 2:
            yield from _with_and_without_the_first(f"the {name.replace('_', ' ')}", mask.ne(0))


def _leaves_out(value: Any) -> bool:
    """Say whether whole numbers are labels some of which do not count. Waits for the device."""
    import torch

    is_whole = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return is_whole and value.ndim > 0 and value.dtype != torch.bool and bool(value.eq(IGNORED).any())


def _with_and_without_the_first(name: str, mask: Any) -> Iterator[tuple[str, Any]]:
    yield name, mask
    if mask.ndim > 1:  # where the next label is predicted, the first one of a row is not
        yield f"{name} without the first", mask[..., 1:]


def best_pair(ways: Sequence[AddingUp]) -> tuple[int, int]:
    """Return the two rows that tell the ways apart best; if possible two that count for something by each of them."""
    rows = range(len(ways[0].amounts))
    counting = [row for row in rows if all(way.amounts[row] for way in ways)]
    chosen = (counting if len(counting) > 1 else rows)[:MOST_ROWS]
    pairs = [(first, second) for place, first in enumerate(chosen) for second in chosen[place + 1 :]]
    return max(pairs, key=lambda pair: _spread(way.pair(*pair)[0] for way in ways))


def _spread(shares: Iterable[float]) -> float:
    """Return how far apart some numbers are, two by two."""
    ordered = sorted(shares)
    return sum(share * (2 * place - len(ordered) + 1) for place, share in enumerate(ordered))


def thinned(inputs: Mapping[str, Any], layout: Layout) -> tuple[dict[str, Any], tuple[int, int]] | None:
    """Return the batch with two and four labels left in two rows, the first among them, and these rows.

    So few that it can be seen whether the first one counts, however long the rows are and however coarse the numbers.
    None where that cannot be made, or where the loss was never seen to leave labels out: it may not know how to.
    """
    labels: Any = inputs.get("labels")
    if getattr(labels, "ndim", 0) != 2 or labels.is_floating_point() or not bool(labels.eq(IGNORED).any()):
        return None
    counted = labels.ne(IGNORED)
    amounts = counted.sum(1).tolist()
    able = [row for row in range(layout.rows) if bool(counted[row, 0]) and amounts[row] >= 2]
    more = max(able, key=lambda row: amounts[row], default=-1)
    few = next((row for row in able if row != more), -1)
    if few < 0 or amounts[more] < 4:
        return None
    kept = labels.new_full(labels.shape, IGNORED)
    for row, number in ((few, 2), (more, 4)):
        places = counted[row].nonzero().flatten()[:number]
        kept[row, places] = labels[row, places]
    return {**inputs, "labels": kept}, (few, more)

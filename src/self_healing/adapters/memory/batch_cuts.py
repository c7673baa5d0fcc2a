"""How a micro-batch may be cut into pieces whose gradients add up to its own, or why it may not.

What a piece counts for depends on how the loss adds up its rows, and that is known per trainer (`known_losses`) or found
out by trying (`loss_weights`). Where it is not certain, nothing is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "seq_idx", "image_grid_thw", "video_grid_thw")
"""Inputs that only packed rows or flattened images have: row i of one tensor is not row i of another."""


class Weight(StrEnum):
    """What the loss of a piece counts for in the loss of the micro-batch."""

    ONE = "one"
    """The loss is a sum divided by a number that is given: pieces simply add up."""
    ROWS = "rows"
    """The loss is a mean over rows or pairs."""
    LABELS = "labels"
    """The loss is a mean over the labels that count."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which inputs hold a value per row and how many rows (or pairs) there are."""

    rows: int
    is_paired: bool
    """The first half of the rows are the chosen answers, the second half the rejected ones."""
    whole: tuple[str, ...] = ()
    """Inputs that every piece gets whole."""

    def part(self, inputs: Mapping[str, Any], start: int, end: int) -> dict[str, Any]:
        """Return the inputs of some rows (or pairs)."""
        return {name: self._cut(name, value, start, end) for name, value in inputs.items()}

    def _cut(self, name: str, value: Any, start: int, end: int) -> Any:
        size = _rows(value)
        if size is None or name in self.whole:
            return value
        if self.is_paired and size == 2 * self.rows:
            import torch

            chosen, rejected = value[: self.rows], value[self.rows :]
            if isinstance(value, torch.Tensor):
                return torch.cat((chosen[start:end], rejected[start:end]))
            return chosen[start:end] + rejected[start:end]
        return value[start:end]


def layout_of(inputs: Any, *, is_paired: bool = False, whole: tuple[str, ...] = (), fewest: int = 2) -> Layout | str:
    """Return how the inputs are laid out, or a sentence that says why they cannot be cut by rows; fewer than two cannot."""
    if not isinstance(inputs, Mapping):
        return f"the batch is a {type(inputs).__name__}, not a mapping"
    packed = [name for name in PACKED if inputs.get(name) is not None]
    if packed:
        return f"rows are packed ({packed[0]} is given)"
    main = shape_of(inputs)[0]
    if is_paired and main % 2:
        return f"{main} rows are not pairs"
    rows = main // 2 if is_paired else main
    if rows < fewest:
        return f"the micro-batch is a single {'pair' if is_paired else 'row'}"
    for name, value in inputs.items():
        size = _rows(value)
        if name not in whole and size is not None and size not in (rows, main):
            return f"'{name}' has {size} rows where the batch has {rows}"
    return Layout(rows, is_paired, whole)


def shape_of(inputs: Any) -> tuple[int, int]:
    """Return rows and padded length, from what the host knows of the tensors."""
    if not isinstance(inputs, Mapping):
        return (len(inputs) if isinstance(inputs, list | tuple) else 0), 0
    tensors = [value for value in inputs.values() if getattr(value, "ndim", 0) > 0]
    if not tensors:
        return 0, 0
    named = [inputs[name] for name in ("input_ids", "prompt_ids", "chosen_input_ids") if name in inputs]
    rows = int((named or tensors)[0].shape[0])
    return rows, max((int(tensor.shape[1]) for tensor in tensors if tensor.ndim > 1), default=0)


def _rows(value: Any) -> int | None:
    """Return the length of the first dimension; None for what is not given per row."""
    if isinstance(value, list | tuple):
        return len(value)
    return int(value.shape[0]) if getattr(value, "ndim", 0) > 0 else None

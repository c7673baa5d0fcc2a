"""The fault `nan-record`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, rows_of, with_loss_times


@dataclass(kw_only=True)
class NanRecord(Fault):
    """One record makes the loss NaN whenever it is in a batch."""

    is_transient = False
    from_outside = True
    expected = Expected(cause=("step-not-finite",), actions=("skip_step",), excess=0.03)

    def plant(self, trainer: Any) -> None:
        """Remember the first row of one step's batch and spoil every batch that holds it."""
        marked: list[Any] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            rows = rows_of(inputs)
            if step == self.at_step and not marked:
                marked.append(rows[0].clone())
            if not marked or rows.shape[1:] != marked[0].shape:
                return None
            holds_it = bool((rows == marked[0]).flatten(1).all(dim=1).any())
            return with_loss_times(output, float("nan")) if holds_it else None

        on_training_forward(trainer, spoil)

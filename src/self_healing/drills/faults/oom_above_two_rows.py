"""The fault `oom-above-two-rows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, rows_of, run_out_of_memory


@dataclass(kw_only=True)
class OomAboveTwoRows(Fault):
    """From one step on, every forward pass in training over more than two rows runs out of memory.

    Gradient checkpointing does not help: what counts is the number of rows the model is called with.
    """

    most_rows: int = 2
    """Rows that fit."""

    is_transient = False
    from_outside = True
    expected = Expected(cause=("out-of-memory",), actions=("split_micro_batch",))

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on the model."""

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            rows = len(rows_of(inputs))
            if step >= self.at_step and rows > self.most_rows:
                run_out_of_memory(rows_of(inputs), f"{rows}.00 GiB. (a drill: {self.most_rows} rows fit)")

        on_training_forward(trainer, spoil)

"""The fault `oom-above-two-rows`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Fault, on_training_forward


@dataclass(kw_only=True)
class OomAboveTwoRows(Fault):
    """From one step on, every forward pass in training over more than two rows runs out of memory.

    Gradient checkpointing does not help: what counts is the number of rows the model is called with.
    """

    most_rows: int = 2
    """Rows that fit."""

    is_transient = False

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on the model."""
        import torch

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            rows = int(inputs["input_ids"].shape[0])
            if step >= self.at_step and rows > self.most_rows:
                told = f"CUDA out of memory. Tried to allocate {rows}.00 GiB. (a drill: {self.most_rows} rows fit)"
                raise torch.OutOfMemoryError(told)

        on_training_forward(trainer, spoil)

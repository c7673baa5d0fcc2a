"""The fault `oom-in-packed-rows`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward


@dataclass(kw_only=True)
class OomInPackedRows(Fault):
    """From one step on, every forward pass in training over more than four packed rows runs out of memory.

    Packed rows cannot be cut into pieces and gradient checkpointing does not help, so that no step can be saved: what
    helps is to go on with a smaller batch.
    """

    most_rows: int = 4
    """Rows that fit."""

    is_transient = False
    stage = "trainer"
    requires = ("transformers", "accelerate")
    expected = Expected(cause=("crashed: oom_gpu",), actions=("halve_batch_size",))

    def plant(self, trainer: Any) -> None:
        """Mark the rows as packed, and raise what PyTorch raises from a hook on the model."""
        import torch

        trainer.data_collator = PackedRows(trainer.data_collator)

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            rows = int(inputs["input_ids"].shape[0])
            if step >= self.at_step and rows > self.most_rows:
                told = (
                    f"CUDA out of memory. Tried to allocate {rows}.00 GiB. (a drill: {self.most_rows} packed rows fit)"
                )
                raise torch.OutOfMemoryError(told)

        on_training_forward(trainer, spoil)


class PackedRows:
    """A collator that says of each token which of the row's documents it belongs to; here each row is one document."""

    def __init__(self, collate: Callable[[Any], dict[str, Any]]) -> None:
        self.collate = collate

    def __call__(self, rows: Any) -> dict[str, Any]:
        """Collate, and add to which document each token belongs."""
        import torch

        batch = self.collate(rows)
        return {**batch, "seq_idx": torch.zeros(batch["input_ids"].shape, dtype=torch.int32)}

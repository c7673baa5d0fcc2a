"""`SFTTrainer`: a mean over the labels that count, or a sum divided by their number in the whole step."""

from __future__ import annotations

from typing import Any

from ..family import Family
from ..memory.batch_cuts import Weight


class Sft(Family):
    """Supervised fine-tuning."""

    handles = ("SFTTrainer",)
    metric_lists = ("_metrics",)
    counts = ("_metrics", "_total_train_tokens")

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse where the user computes the loss."""
        is_own = trainer.compute_loss_func is not None
        return "compute_loss_func is your own: how it adds up its rows is not known" if is_own else None

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return one where the number of labels is given from outside."""
        return Weight.LABELS if num_items is None else Weight.ONE

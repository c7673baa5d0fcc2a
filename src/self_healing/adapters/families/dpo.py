"""`DPOTrainer`: a mean over pairs, of which all chosen answers come first. Before trl 1.0 each side has fields of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..family import CHOSEN_TOKENS, REJECTED_TOKENS, Family
from ..memory.batch_cuts import Weight

COUPLED = ("sft", "aot", "aot_unpaired")
"""Losses in which a row's share depends on the other rows."""


class Dpo(Family):
    """Preferences as pairs, against a reference model."""

    handles = ("DPOTrainer",)
    has_pairs = True
    metric_lists = ("_metrics", "_stored_metrics")  # the second up to trl 0.24
    counts = ("_metrics", "_stored_metrics", "_total_train_tokens")

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse losses that look at several rows at once."""
        types: Any = getattr(trainer, "loss_types", None) or getattr(trainer, "loss_type", ())
        coupled = [kind for kind in ([types] if isinstance(types, str) else types) if kind in COUPLED]
        if coupled or getattr(trainer.args, "rpo_alpha", None) is not None:
            return f"the DPO loss {coupled[0] if coupled else 'with rpo_alpha'} couples the rows of a batch"
        return None

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over pairs."""
        return Weight.ROWS

    def unit(self, metric: str) -> str:
        """Name what a metric is a mean over: the accuracy is that of the chosen answers."""
        name, _, side = metric.partition("/")
        if name == "mean_token_accuracy" or (name == "logits" and side in ("chosen", "rejected")):
            return f"{side or 'chosen'} tokens"
        return super().unit(metric)

    def amounts_of_sides(self, inputs: Mapping[str, Any], per_row: Any, rows: int) -> dict[str, float]:
        """Count the tokens of each half."""
        if len(per_row) != 2 * rows:
            return {}
        return {CHOSEN_TOKENS: float(per_row[:rows].sum()), REJECTED_TOKENS: float(per_row[rows:].sum())}

"""`KTOTrainer`: a mean over answers of either sort, against a baseline that is a mean over the whole batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..family import CHOSEN_TOKENS, REJECTED_TOKENS, Family
from ..memory.batch_cuts import Weight

SIDES = ("chosen", "rejected")


class Kto(Family):
    """Preferences as single answers, wanted or not."""

    handles = ("KTOTrainer",)
    judgement_column = "label"
    whole_fields = ("ref_KL_logps",)
    whole_batch_call = "_compute_kl_logps"
    metric_lists = ("_metrics", "_stored_metrics")  # the second up to trl 0.24
    counts = ("_metrics", "_stored_metrics", "_total_train_tokens")

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse where a piece cannot be given the baseline of the whole batch, as before trl 1.0."""
        if getattr(trainer, "calculate_KL", False) and not hasattr(trainer, self.whole_batch_call):
            return (
                "the KTO baseline is a mean over the whole batch, and this version of TRL computes it inside its loss"
            )
        return None

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over answers."""
        return Weight.ROWS

    def unit(self, metric: str) -> str:
        """Name what a metric is a mean over: those of one sort, by the answers of that sort."""
        name, _, side = metric.partition("/")
        if side in SIDES:
            return f"{side} tokens" if name == "logits" else side
        return super().unit(metric)

    def amounts_of_sides(self, inputs: Mapping[str, Any], per_row: Any, rows: int) -> dict[str, float]:
        """Count the answers of each sort."""
        is_chosen = inputs["label"].to(per_row.device).bool()
        return {
            "chosen": float(is_chosen.sum()),
            "rejected": float((~is_chosen).sum()),
            CHOSEN_TOKENS: float(per_row[is_chosen].sum()),
            REJECTED_TOKENS: float(per_row[~is_chosen].sum()),
        }

    def complete(self, folded: dict[str, float]) -> None:
        """Add the margin: a piece with answers of one sort only has none; the micro-batch has."""
        chosen, rejected = (folded.get(f"rewards/{side}") for side in SIDES)
        if chosen is not None and rejected is not None:
            folded["rewards/margins"] = chosen - rejected

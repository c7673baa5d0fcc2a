"""`GRPOTrainer`: data are generated, for several steps at once if so set; how a loss adds up depends on its type."""

from __future__ import annotations

from typing import Any

from ..memory.batch_cuts import Weight
from ._generating import Generating

WEIGHTS = {
    **dict.fromkeys(("dapo", "cispo", "vespo"), Weight.ONE),
    **dict.fromkeys(("grpo", "sapo", "dr_grpo", "luspo"), Weight.ROWS),
    "bnpo": Weight.LABELS,
}
"""What a piece counts for, by the type of the loss."""


class Grpo(Generating):
    """Group-relative policy optimisation."""

    handles = ("GRPOTrainer",)
    live_kl_weight = "beta"

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse a loss that picks its tokens from the whole batch, and one that is not known."""
        if getattr(trainer, "top_entropy_quantile", 1.0) < 1.0:
            return "top_entropy_quantile < 1 picks tokens from the whole batch"
        if getattr(trainer, "_entropy_bonus_enabled", False):
            return "the entropy bonus is a mean over the tokens of a whole batch, and moves once for each"
        kind = trainer.loss_type
        return None if kind in WEIGHTS else f"how the GRPO loss {kind} adds up its rows is not known"

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return what the type of the loss says."""
        return WEIGHTS[trainer.loss_type]

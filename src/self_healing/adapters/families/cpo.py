"""`CPOTrainer`, in `trl.experimental` by now: a mean over the tokens of chosen answers plus a mean over pairs."""

from __future__ import annotations

from typing import Any

from ..family import Family
from ..memory.batch_cuts import Weight


class Cpo(Family):
    """Contrastive preferences and SimPO, without a reference model."""

    handles = ("CPOTrainer",)
    metric_lists = ("_stored_metrics",)
    counts = ("_stored_metrics",)

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse: one weight per piece cannot suit both means. Without the first, as in SimPO, there is one."""
        if trainer.cpo_alpha == 0:
            return None
        return "CPOTrainer adds a mean over tokens and a mean over pairs: no weight of a piece is right for both"

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over pairs."""
        return Weight.ROWS

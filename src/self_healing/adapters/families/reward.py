"""`RewardTrainer`: a mean over pairs, of which all chosen answers come first."""

from __future__ import annotations

from typing import Any

from ..family import Family
from ..memory.batch_cuts import Weight


class Reward(Family):
    """Reward models."""

    handles = ("RewardTrainer",)
    has_pairs = True
    metric_lists = ("_metrics",)
    counts = ("_metrics", "_total_train_tokens")

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over pairs."""
        return Weight.ROWS

"""`RLOOTrainer`: data are generated, for several steps at once if so set; the loss is a mean over completions."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from ..family import Family
from ..memory.batch_cuts import Weight


class Rloo(Family):
    """REINFORCE with the others of a group as the baseline."""

    handles = ("RLOOTrainer",)
    metric_lists = ("_metrics",)
    step_counts = ("_step", "_current_train_step_time")
    generated = ("_buffered_inputs",)
    counts = ("_metrics", "_total_train_tokens", *step_counts, *generated, "_logs")
    generates_by = ("_generate_single_turn",)
    scored_by = ("reward_funcs",)
    stale_marks = MappingProxyType({"_last_loaded_step": -1})

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over completions."""
        return Weight.ROWS

    def unit(self, metric: str) -> str:
        """Count tokens: what is a mean over completions is not computed in the loss."""
        return "tokens"

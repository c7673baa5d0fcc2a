"""`RLOOTrainer`: data are generated, for several steps at once if so set; the loss is a mean over completions."""

from __future__ import annotations

from typing import Any

from ..memory.batch_cuts import Weight
from ._generating import Generating


class Rloo(Generating):
    """REINFORCE with the others of a group as the baseline."""

    handles = ("RLOOTrainer",)
    live_kl_weight = "beta"

    def weight(self, trainer: Any, *, num_items: Any) -> Weight | None:
        """Return a mean over completions."""
        return Weight.ROWS

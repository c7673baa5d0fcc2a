"""The fault `slow-rank`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault


@dataclass(kw_only=True)
class SlowRank(Fault):
    """One of two ranks needs several times as long for each step as it did, and all wait for it."""

    at_step: int = 20

    is_transient = True
    is_for_trainers = False
    stage = "ranks"
    expected = Expected(cause=("rank-straggling",), actions=("alert",), within=40, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Have the second rank sleep in each step from one on."""
        if trainer.rank == 1:
            trainer.each.append(lambda step: time.sleep(0.15) if step >= self.at_step else None)

"""The fault `rank-killed`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, signal_once


@dataclass(kw_only=True)
class RankKilled(Fault):
    """One of two ranks is killed in the middle of a step; the other waits for it in a collective."""

    at_step: int = 31

    is_transient = True
    is_for_trainers = False
    stage = "ranks"
    expected = Expected(cause=("crashed: nccl_error",), actions=("resume",), within=4, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Kill the second rank, once."""
        if trainer.rank == 1:
            signal_once(trainer, self.at_step, signal.SIGKILL)

"""The fault `reward-hangs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault
from ..tiny_trl import Mishap


@dataclass(kw_only=True)
class RewardHangs(Fault):
    """A reward function does not come back, once."""

    at_step: int = 5

    is_transient = True
    is_for_trainers = False
    stage = "grpo"
    requires = ("trl", "transformers", "datasets")
    expected = Expected(cause=("reward-function-failed",), actions=("backoff",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Put a function with a mishap in the place of the trainer's."""
        trainer.reward_funcs[0] = Mishap(trainer.reward_funcs[0], self.at_step + 1, hangs=True)

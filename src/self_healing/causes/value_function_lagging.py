"""The cause `value-function-lagging`."""

from __future__ import annotations

import math

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import ENOUGH

LONG = 64
SHIFTED = 3.0


class ValueFunctionLagging(Cause):
    """The value function does not keep up with the rewards it has to predict.

    Rewards have changed their level or their scale since it was trained, or its own rate is too high for it to settle.
    """

    explains = ("value-loss-growing",)
    confirm = (
        "Compare val/clipfrac_avg and the explained variance before and after: predictions that stand still settle it."
    )
    fixes = (
        "Whiten or clip the rewards (TRL PPO: whiten_rewards=True), so that their scale stays what it was.",
        "Set cliprange_value to 0.2 and vf_coef to 0.1.",
        "Start the value model from the reward model, and train it alone for some batches.",
    )
    references = ("https://arxiv.org/abs/2403.17031",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look whether the reward has changed its level."""
        rewards = past.last("reward", LONG)
        half = len(rewards) // 2
        if half < ENOUGH:
            return Evidence(weight=0.3)
        before, after = rewards[:half], rewards[half:]
        middle = sum(before) / half
        spread = math.hypot(*(value - middle for value in before)) / math.sqrt(half)
        shift = abs(sum(after) / len(after) - middle)
        if shift == 0.0 and spread == 0.0:
            return None
        if shift > SHIFTED * spread:
            return Evidence(
                weight=0.5, found=(f"the mean reward has moved by {shift:.3g}, it used to vary by {spread:.2g}",)
            )
        return Evidence(weight=0.3)

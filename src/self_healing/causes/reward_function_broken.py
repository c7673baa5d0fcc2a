"""The cause `reward-function-broken`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

WINDOW = 20
ENOUGH = WINDOW - 1
"""The newest observation is not settled yet when a rule fires on it."""
ALIVE = 0.15
CUT = 0.8


class RewardFunctionBroken(Cause):
    """The reward function gives every completion the same, usually nothing.

    The advantage is the difference within a group, so equal rewards mean no gradient at all. Either the function
    does not see what it needs, or the task is out of the model's reach. A healthy run passes a mean of 0.15 within
    20 steps.
    """

    explains = ("reward-flat", "reward-no-signal", "loss-plateau", "gradient-vanishing", "loss-exactly-zero")
    confirm = "Call the reward function by hand on a known right and a known wrong answer: two equal rewards settle it."
    fixes = (
        "Test the reward function outside training on known inputs; it must return something other than zero.",
        "Check that the data set columns it takes from **kwargs, such as answer, survive the transform.",
        "Set log_completions: true and read some: empty or incoherent text means the model is too weak for the task.",
        "Ask the vLLM server which model it serves and compare it with the configuration.",
        "If completions/clipped_ratio is above 0.8, raise max_completion_length: answers are cut before they are given.",
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at the last 20 rewards, their spread, and how many completions were cut."""
        rewards, spreads = past.last("reward", WINDOW), past.last("reward_std", WINDOW)
        idle = past.last("frac_reward_zero_std", WINDOW)
        if not (rewards or spreads or idle):
            return None
        found = []
        if len(rewards) >= ENOUGH and not any(rewards):
            found.append(f"the reward was 0 in each of the last {WINDOW} observations")
        if len(spreads) >= ENOUGH and not any(spreads):
            found.append(f"rewards did not differ within any group of the last {WINDOW} observations")
        if len(idle) >= ENOUGH and min(idle) >= 1:
            found.append("frac_reward_zero_std was 1.0 throughout, so there was no gradient")
        if not found:
            healthy = rewards and max(rewards) > ALIVE and (not spreads or any(spreads))
            return None if healthy else Evidence(weight=0.25)
        cut = finite_latest(past, "completions/clipped_ratio")
        if cut is not None and cut > CUT:
            found.append(f"{cut:.0%} of completions hit the length limit")
        return Evidence(weight=min(0.55 + 0.1 * len(found), 0.8), found=tuple(found))

"""The cause `task-too-hard-or-too-easy`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

WINDOW = 20
IDLE, BUSY = 0.5, 0.3


class TaskTooHardOrTooEasy(Cause):
    """The model solves the prompts always or never, so that groups of completions get equal rewards.

    A prompt teaches something only while it is solved sometimes. With k completions a prompt of success rate p differs
    within its group with probability 1 - p^k - (1 - p)^k: at k = 4 and p = 0.02 that is one group in thirteen.
    """

    explains = ("reward-no-signal", "reward-flat")
    confirm = (
        "Sample 16 completions for 50 prompts with the model as it is: rates of 0 or 1 nearly everywhere settle it."
    )
    fixes = (
        "Choose prompts that are solved in 10 to 90 % of the tries, or order them from easy to hard.",
        "Raise num_generations, and temperature to 0.8 to 1.0.",
        "Give partial rewards, for the format or for steps on the way.",
    )
    references = ("https://arxiv.org/abs/2503.14476",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at the share of groups with equal rewards, and at the rewards."""
        idle, rewards = finite_latest(past, "frac_reward_zero_std"), past.last("reward", WINDOW)
        if idle is not None and idle < BUSY:
            return None
        if idle is None or not rewards:
            return Evidence(weight=0.25)
        mean = sum(rewards) / len(rewards)
        if idle < IDLE or mean == 0.0:  # a function that never gives anything may as well be broken
            return Evidence(weight=0.35)
        return Evidence(
            weight=0.5, found=(f"{idle:.0%} of the groups have equal rewards, the mean reward is {mean:.3g}",)
        )

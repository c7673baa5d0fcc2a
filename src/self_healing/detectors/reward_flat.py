"""The rule `reward-flat`: the reward is zero, or no higher than at the beginning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal
from ..core.statistics import Course, Statistic
from ._run_health import REWARD_STD, report

BLOCK = 16
"""Observations between two looks at the whole run: looking all the time would find a flat stretch in any noise."""

_NOISE = tuple(math.sin(i * i) for i in range(240))


@dataclass(frozen=True, kw_only=True)
class RewardFlat(Detector):
    """The reward stays at zero, or is no higher than when the run began.

    ## Why it matters
    The reward is the only thing such a run learns from. Exactly zero in every observation means that the reward function
    finds nothing to reward: it does not get the column it needs, the answers are cut off before they are given, or the
    task is out of the model's reach. A reward that is noise around its first level is compute without a result.

    ## What is normal
    Many single zeros early on; a mean of 0.15 and more within 20 steps for usual reward functions; a rise of 0.3 of the
    rewards' spread (`reward_std`) within 150 observations, with ups and downs. The loss says nothing here.

    ## What to try
    1. Call the reward function by hand on a right and a wrong answer.
    2. Read completions (`log_completions=True`).
    3. Look at `completions/clipped_ratio`.
    4. Easier prompts, a shaped reward, more `num_generations`.
    5. Only then a higher `learning_rate`.

    ## False alarms
    Zeros are only reported where the spread is zero as well: centred rewards have a mean of zero. Whether the reward has
    risen is asked of means over 64 observations, the first against the newest, after 144 observations, and only if the
    rise is neither visible (1.5 standard errors) nor possibly larger than `risen` times the spread. A run that begins at
    its ceiling is flat without being sick, and a very slow one may be called flat once: it is a warning.

    ## References
    Axolotl, Training stability and debugging, for the first 20 steps; Shao et al. (2024), DeepSeekMath, arXiv 2402.03300,
    for advantages within a group.
    """

    zeros: int = 20
    """Rewards of exactly zero in a row that are reported."""
    window: int = 64
    """Rewards whose mean is compared with that of the first ones."""
    after: int = 144
    """Rewards from the start of the run that are never called flat."""
    risen: float = 0.3
    """Rise, as a share of the rewards' spread within a group, that a run should have made by then."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_no_improvement"
    severity = Severity.WARNING
    reads = ("reward",)
    paced_by = "reward"
    remedy = (
        rung(
            Alert(
                about="reward-flat",
                advice="Call the reward function by hand on a right and a wrong answer, and read completions "
                "(TRL: log_completions=True; Axolotl: trl.log_completions: true).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("zero from the start", at_step=19, reward=[0.0] * 30, reward_std=[0.0] * 30),
        fires(
            "noise around its first level",
            at_step=143,
            reward=[0.4 + 0.3 * x for x in _NOISE],
            reward_std=[0.5] * 240,
        ),
        fires("looked for every 16 observations", at_step=159, options={"after": 150},
              reward=[0.4 + 0.3 * x for x in _NOISE], reward_std=[0.5] * 240),
        quiet("rises, with zeros now and then", reward=[0.0 if i % 4 == 0 else 0.003 * i for i in range(240)],
              reward_std=[0.3] * 240),
        quiet("has learned and levels off", reward=[1 - math.exp(-i / 40) + 0.1 * x for i, x in enumerate(_NOISE)],
              reward_std=[0.3] * 240),
        quiet("centred rewards", reward=[0.0] * 60, reward_std=[0.7] * 60),
        quiet("too short to tell", reward=[0.4 + 0.3 * x for x in _NOISE[:140]], reward_std=[0.5] * 140),
    )  # fmt: skip

    @cached_property
    def _newest(self) -> Course:
        return Course("reward", window=self.zeros)

    @cached_property
    def _newest_std(self) -> Course:
        return Course("reward_std", window=self.zeros)

    @cached_property
    def _course(self) -> Course:
        return Course("reward", window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The newest rewards and spreads, and the long means."""
        return (self._newest, self._newest_std, self._course, REWARD_STD)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look for zeros at every reward, for a rise now and then."""
        if now.get("reward") is None:
            return None
        newest = past.stat(self._newest)
        if newest.ready and not any(newest.values):
            return None if any(past.stat(self._newest_std).values) else self._zero(now, past)
        return self._unrisen(now, past)

    def _zero(self, now: Signal, past: History) -> Incident:
        because = f"the reward was exactly 0 in each of the last {self.zeros} observations"
        return report(self, now, "reward", because, fine="grpo_zero_signal",
                      onset_step=past.step_ago("reward", self.zeros - 1))  # fmt: skip

    def _unrisen(self, now: Signal, past: History) -> Incident | None:
        course, spread = past.stat(self._course), past.stat(REWARD_STD).mean
        if course.count < self.after or course.count % BLOCK or not course.has_moved_on or spread <= 0.0:
            return None
        gain, error = course.mean - course.first, course.change_error
        if gain > 1.5 * error or gain + error > self.risen * spread:
            return None
        if course.highest - course.first > 2.0 * self.risen * spread:  # it did rise once: another rule's matter
            return None
        because = (
            f"the mean reward is {course.mean:.3g} after {course.count} observations and began at {course.first:.3g} "
            f"(+- {error:.2g}; rewards differ by {spread:.2g} within a group)"
        )
        silent = self._silent(now, past)
        if silent:
            because += f"; always 0: {', '.join(silent)}"
        return report(self, now, "reward", because, onset_step=0, gain=gain, error=error)

    def _silent(self, now: Signal, past: History) -> list[str]:
        """Return the reward functions that have never given anything lately, where there are several."""
        if not isinstance(now, Metrics):
            return []
        names = [name for name in now.values if name.startswith("rewards/") and name.endswith("/mean")]
        return [name[8:-5] for name in names if len(names) > 1 and not any(past.last(name, self.window))]

"""The rule `reward-collapse`: the reward had risen and is back where it began."""

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
from ..core.signal import Signal
from ..core.statistics import Course, Statistic
from ._run_health import below, onset, report

_RISE = tuple(0.1 + 0.8 * min(1.0, i / 60) + 0.05 * math.sin(i * i) for i in range(100))


@dataclass(frozen=True, kw_only=True)
class RewardCollapse(Detector):
    """The reward had clearly risen and has lost most of that again.

    ## Why it matters
    The policy has left what worked. It seldom finds back by itself: what it samples now is what it learns from. A
    checkpoint from before the fall is worth more than the steps since.

    ## What is normal
    Noise, dips that last for some observations, and a plateau after the rise. A harder part of a curriculum lowers the
    reward too.

    ## What to try
    1. Go back to the checkpoint before the fall with half the `learning_rate`.
    2. A KL penalty (`beta` 0.01 to 0.1).
    3. Fewer updates per batch of completions (`num_iterations=1`, fewer `steps_per_generation`).
    4. If the reward fell while `kl` shot up or `entropy` went to zero, the rules for these say more.

    ## False alarms
    Means over `window` observations are compared. The rise must have been `certain` standard errors of such a mean, since
    the best of many windows is a lucky one, and `lost` of it must be gone. It only warns.

    ## References
    Gao et al. (2022), Scaling laws for reward model overoptimization, arXiv 2210.10760, for rewards that turn around.
    """

    window: int = 24
    """Rewards that are averaged."""
    certain: float = 8.0
    """Rise, in standard errors of such a mean, that counts as one."""
    lost: float = 0.75
    """Share of the rise that must be gone."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_collapse"
    severity = Severity.WARNING
    reads = ("reward",)
    paced_by = "reward"
    remedy = (
        rung(
            Alert(
                about="reward-collapse",
                advice="Go back to the checkpoint before the fall with half the learning_rate, or add a KL penalty "
                "(TRL: beta; Axolotl: trl.beta).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("back to nothing", at_step=115, reward=(*_RISE, *[0.1] * 40)),
        quiet("stays up", reward=(*_RISE, *_RISE[60:])),
        quiet("a dip", reward=(*_RISE, *[0.1] * 8, *_RISE[60:])),
        quiet("noise", reward=[0.4 + 0.3 * math.sin(i * i) for i in range(300)]),
    )

    @cached_property
    def _course(self) -> Course:
        return Course("reward", window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The means of the reward."""
        return (self._course,)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the best and the first."""
        if now.get("reward") is None:
            return None
        course = past.stat(self._course)
        if not course.has_moved_on:
            return None
        gained, gone = course.highest - course.first, course.highest - course.mean
        if gone < self.lost * gained or gained < self.certain * course.change_error or gained <= 0.0:
            return None
        half = course.highest - 0.5 * gained
        return report(
            self, now, "reward",
            f"the mean reward rose from {course.first:.3g} to {course.highest:.3g} and is {course.mean:.3g} now",
            onset_step=onset(past, "reward", below(half)), best=course.highest, level=course.mean,
        )  # fmt: skip

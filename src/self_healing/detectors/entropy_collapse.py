"""The rule `entropy-collapse`: the policy writes the same thing every time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from ..actions.alert import Alert
from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Course, Statistic
from ._run_health import (
    IDLE,
    REWARD,
    REWARD_STD,
    below,
    has_fallen,
    has_improved,
    is_policy_run,
    onset,
    report,
    reported,
)

AGO = 48
"""Observations before which the level before a fall is looked for."""

NO_SIGNAL = 0.9
"""Share of groups with equal rewards from which a policy that does not explore cannot learn its way out."""

ADVICE = (
    "Lower the learning_rate, sample at temperature 0.8 to 1.0, add a KL penalty (TRL: beta; Axolotl: trl.beta), raise "
    "epsilon_high (0.28) or set entropy_coef."
)


@dataclass(frozen=True, kw_only=True)
class EntropyCollapse(Detector):
    """The entropy of the policy has fallen to a small part of what it was, towards zero.

    ## Why it matters
    All completions of a group become alike, their rewards equal and the gradient nothing: the policy no longer explores
    and cannot find anything better, nor out of something worse.

    ## What is normal
    A slow fall from 0.3 to 0.6 at the start to 0.05 to 0.5, in step with a rising reward: entropy is what the reward is
    bought with. Models with a long supervised stage begin lower, small vocabularies end lower.

    ## What to try
    1. A lower `learning_rate`, from a checkpoint before the fall.
    2. `temperature` 0.8 to 1.0.
    3. A KL penalty (`beta`).
    4. `epsilon_high=0.28` (clip-higher), or `entropy_coef` where the trainer has it.
    5. 16 and more `num_generations`.

    ## False alarms
    The mean must be below `below` and below `share` of the run's own first level, so a run that begins low is left alone.
    It is an error, which may return to an earlier state, only below `collapsed` and if the reward has fallen from its best
    or, never having risen, no longer differs within groups. A low entropy at a high reward stays a warning.

    ## References
    Cui et al. (2025), The entropy mechanism of reinforcement learning for reasoning language models, arXiv 2505.22617;
    Yu et al. (2025), DAPO, arXiv 2503.14476, for clip-higher.
    """

    window: int = 16
    """Observations that are averaged."""
    below: float = 0.05
    """Mean entropy per token, in nats, that is low."""
    share: float = 0.2
    """Share of the first mean that is low."""
    collapsed: float = 0.01
    """Mean entropy per token at which an error is possible."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_collapse"
    severity = Severity.ERROR
    reads = ("entropy", "policy/entropy_avg")
    paced_by = "entropy"
    remedy = (
        rung(RollBack(), RewarmLearningRate(), success=0.5),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.5, repeats=3),
        rung(StopRun()),
    )
    examples = (
        fires(
            "collapsed, and the reward with it",
            at_step=54,
            severity=Severity.WARNING,
            entropy=[0.4] * 40 + [0.002] * 40,
            reward=[0.6] * 40 + [0.1] * 40,
        ),
        fires(
            "collapsed without ever having learned",
            at_step=43,
            severity=Severity.ERROR,
            entropy=[0.4] * 16 + [0.03] * 16 + [0.002] * 40,
            reward=[0.1] * 80,
            frac_reward_zero_std=[0.2] * 16 + [1.0] * 64,
            options={"below": 0.0099},
        ),
        quiet(
            "falls slowly to where it is useful",
            entropy=[0.06 + 0.5 * 0.98**i for i in range(300)],
            reward=[1 - 0.98**i for i in range(300)],
        ),
        quiet("low from the start", entropy=[0.02] * 100, reward=[0.5] * 100),
        quiet("a supervised run that knows its data", entropy=[0.9**i for i in range(100)], loss=[0.5] * 100),
    )

    def __post_init__(self) -> None:
        """Refuse a collapse that is none."""
        super().__post_init__()
        if self.collapsed > self.below and "collapsed" in self.given:
            self.refuse("collapsed", f"must not be above below = {self.below}")

    @cached_property
    def _courses(self) -> tuple[Course, ...]:
        return tuple(Course(name, window=self.window) for name in self.reads)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The entropy, and what reward and signal do."""
        return (*self._courses, REWARD, REWARD_STD, IDLE)

    def ladder(self, incident: Incident) -> Ladder:
        """A warning is only told."""
        if incident.severity is Severity.ERROR:
            return self.remedy
        return (rung(Alert(about="entropy-collapse", advice=ADVICE), success=0.1),)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the limit and with the first one."""
        found = reported(now, self._courses, past)
        if found is None or not is_policy_run(past):
            return None
        metric, course = found
        limit = min(self.below, self.share * course.first)
        if not course.has_moved_on or course.mean >= limit:
            return None
        harm = self._harm(past) if course.mean < self.collapsed else ""
        found_now = report(
            self, now, metric,
            f"the entropy is {course.mean:.3g} on average over {self.window} observations and began at {course.first:.3g}"
            + harm,
            severity=Severity.ERROR if harm else Severity.WARNING,
            onset_step=onset(past, metric, below(max(limit, 0.5 * self._before(metric, past)))), level=course.mean, first=course.first,
        )  # fmt: skip
        return replace(found_now, only_errors_count=True)

    def _before(self, metric: str, past: History) -> float:
        """Return the level before the fall, where that is not too long ago: the fall begins far above the limit."""
        values = past.last(metric, AGO + self.window)[:-AGO]
        return fmean(values) if values else 0.0

    def _harm(self, past: History) -> str:
        reward, idle = past.stat(REWARD), past.stat(IDLE)
        if has_fallen(past):
            return f"; the reward has fallen from {reward.highest:.3g} to {reward.mean:.3g}"
        if idle.ready and idle.mean > NO_SIGNAL and reward.has_moved_on and not has_improved(past):
            return f"; the reward has never risen, and in {idle.mean:.0%} of the groups it no longer differs"
        return ""

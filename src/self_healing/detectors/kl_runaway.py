"""The rule `kl-runaway`: the policy shoots away from the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

from ..actions.alert import Alert
from ..actions.raise_kl_penalty import RaiseKlPenalty
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
from ..core.statistics import Course, CourseTracker, Statistic
from ._run_health import REWARD, REWARD_STD, above, has_fallen, is_policy_run, onset, report, reported

AGO = 24
"""Observations before the newest window at which the level it is compared with ends: a runaway is over sooner."""

ABSURD = 5.0
"""Multiple of the limit from which it does not matter how the policy came there."""

NOTHING_YET = 0.1
"""Share of the limit below which nothing has begun, however small it was before."""

ADVICE = (
    "Raise the KL penalty (TRL: beta, for PPO kl_coef; Axolotl: trl.beta, rl_beta) or lower the learning_rate, from a "
    "checkpoint before the rise."
)


@dataclass(frozen=True, kw_only=True)
class KlRunaway(Detector):
    """The divergence from the reference policy has shot up.

    ## Why it matters
    The policy has left the region in which the reference, and often the reward model, mean anything. Text degenerates,
    and a reward that still rises is usually a fault of the reward function being exploited.

    ## What is normal
    Close to 0 at the start and slow growth. Per token (`kl` of GRPO and RLOO) 0 to 0.5 is usual, healthy runs have been
    seen at 0.9, and a reference that differs from the start gives 1 and more throughout. Sums over a completion
    (`objective/kl` of PPO, `kl` of KTO) are as many times larger as the completion is long. Single spikes mean nothing:
    the estimate is an exponential.

    ## What to try
    1. A higher `beta` (PPO: `kl_coef`).
    2. A lower `learning_rate`.
    3. If `sampler-mismatch` fires too, that first.
    4. Read completions with a high reward.

    ## False alarms
    The median over `window` observations must be above the limit and `growth` times the level some 30 observations before,
    or five times the limit. It is an error, which may return to an earlier state, only where the reward has fallen too.

    ## References
    Gao et al. (2022), Scaling laws for reward model overoptimization, arXiv 2210.10760; Schulman (2020), Approximating KL
    divergence, for the estimates and their spread.
    """

    window: int = 8
    """Observations whose median is judged."""
    per_token: float = 2.0
    """Divergence per token, in nats, that is too high."""
    per_sequence: float = 50.0
    """Divergence summed over a completion that is too high."""
    growth: float = 4.0
    """Multiple of the level before that makes it a runaway."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_kl_blowup"
    severity = Severity.ERROR
    reads = ("kl", "objective/kl")
    paced_by = "kl"
    remedy = (
        rung(RollBack(), RewarmLearningRate(), success=0.5),
        rung(RaiseKlPenalty(), RollBack(), success=0.5),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.5, repeats=3),
        rung(StopRun()),
    )
    examples = (
        fires("shoots up", at_step=53, severity=Severity.WARNING, kl=[0.1] * 50 + [5.0] * 20, reward=[0.5] * 70),
        fires(
            "and takes the reward with it",
            at_step=69,
            severity=Severity.ERROR,
            kl=[0.1] * 50 + [1.9] * 16 + [5.0] * 30,
            reward=[0.6] * 50 + [0.1] * 46,
        ),
        fires("of a PPO run", at_step=53, objective__kl=[2.0] * 50 + [90.0] * 20),
        quiet("grows slowly", kl=[0.004 * i for i in range(700)], reward=[0.5] * 700),
        quiet("a reference that differs", kl=[2.5] * 100, reward=[0.5] * 100),
        quiet("a spike", kl=[0.04] * 50 + [9.0] + [0.04] * 50, reward=[0.5] * 101),
        quiet("the sums of a KTO run", kl=[0.05 * i for i in range(200)], loss=[0.4] * 200),
    )

    @cached_property
    def _courses(self) -> tuple[Course, ...]:
        return tuple(Course(name, window=self.window) for name in self.reads)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The divergence, and what the reward does."""
        return (*self._courses, REWARD, REWARD_STD)

    def ladder(self, incident: Incident) -> Ladder:
        """A warning is only told."""
        if incident.severity is Severity.ERROR:
            return self.remedy
        return (rung(Alert(about="kl-runaway", advice=ADVICE), success=0.1),)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest median with the limit and with what it was."""
        found = reported(now, self._courses, past)
        if found is None or not found[1].ready:
            return None
        metric, course = found
        limit = self.per_token if metric == "kl" and is_policy_run(past) else self.per_sequence
        level, before = course.median, self._before(metric, course, past)
        if level <= limit or (level <= self.growth * before and level <= ABSURD * limit):
            return None
        if level <= ABSURD * limit and not course.has_moved_on:
            return None
        harmed = level > self.growth * before and has_fallen(past)
        reward = past.stat(REWARD)
        found_now = report(
            self, now, metric,
            f"{metric} is {level:.3g} (median of {self.window} observations), was {before:.3g} before"
            + (f"; the reward has fallen from {reward.highest:.3g} to {reward.mean:.3g}" if harmed else ""),
            severity=Severity.ERROR if harmed else Severity.WARNING,
            onset_step=onset(past, metric, above(self._began(limit, before))), level=level, before=before,
        )  # fmt: skip
        return replace(found_now, only_errors_count=True)

    def _began(self, limit: float, before: float) -> float:
        """Return the level from which on it was a rise: the policy had left long before it was too far away."""
        return min(limit, max(self.growth * before, NOTHING_YET * limit))

    def _before(self, metric: str, course: CourseTracker, past: History) -> float:
        """Return the level before the rise; where the run is too young for that, that of its beginning."""
        values = past.last(metric, AGO + 2 * self.window)[: -AGO or None]
        return max(0.0, median(values)) if len(values) >= self.window else max(0.0, course.first)

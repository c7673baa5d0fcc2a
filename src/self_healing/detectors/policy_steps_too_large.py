"""The rule `policy-steps-too-large`: updates leave the region they may be trusted in."""

from __future__ import annotations

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
from ._run_health import above, onset, report

CLIPPED = ("clip_ratio/region_mean", "policy/clipfrac_avg")
"""GRPO and RLOO; PPO."""
APPROXIMATE_KL = "policy/approxkl_avg"


@dataclass(frozen=True, kw_only=True)
class PolicyStepsTooLarge(Detector):
    """A large part of the tokens is clipped, or the policy moves far within the updates of one batch.

    ## Why it matters
    Clipped tokens teach nothing, and what is not clipped was computed for a policy that is no longer there. Each batch
    then moves the policy further than its completions can tell where to.

    ## What is normal
    A clip fraction below 0.1, and exactly 0 where every batch of completions is used for one update; an approximate KL
    between old and new policy of 0.01 to 0.05 (PPO). Ratios of whole sequences (GSPO) are clipped far more often.

    ## What to try
    1. A lower `learning_rate`.
    2. Fewer updates per batch: `num_iterations` and `steps_per_generation` (GRPO), `num_ppo_epochs` (PPO).
    3. Larger batches.
    4. Only then another `epsilon` (PPO: `cliprange`).

    ## False alarms
    The median over `window` observations counts, so single batches do not. It only warns.

    ## References
    Schulman et al. (2017), Proximal policy optimization algorithms, arXiv 1707.06347; Axolotl, Training stability and
    debugging, for the limit of 0.3.
    """

    window: int = 16
    """Observations whose median is judged."""
    clipped: float = 0.3
    """Median share of clipped tokens that is too high."""
    approximate_kl: float = 0.1
    """Median approximate KL between the policy before and after the updates of a batch that is too high."""

    failure = FailureType.RL_COLLAPSE
    fine = "unstable"
    severity = Severity.WARNING
    reads = (*CLIPPED, APPROXIMATE_KL)
    remedy = (
        rung(
            Alert(
                about="policy-steps-too-large",
                advice="Lower the learning_rate, or use a batch of completions for fewer updates (TRL GRPO: num_iterations, "
                "steps_per_generation; PPO: num_ppo_epochs; Axolotl: trl.num_iterations).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("half of the tokens", at_step=37, clip_ratio__region_mean=[0.02] * 30 + [0.5] * 20),
        fires("of a PPO run", at_step=15, policy__clipfrac_avg=[0.4] * 20),
        fires("far within one batch", at_step=37, policy__approxkl_avg=[0.02] * 30 + [0.5] * 20),
        quiet("a few tokens", clip_ratio__region_mean=[0.1, 0.05, 0.2] * 20, policy__approxkl_avg=[0.02] * 60),
        quiet("one batch", clip_ratio__region_mean=[0.0] * 30 + [0.9] + [0.0] * 30),
    )

    @cached_property
    def _limits(self) -> tuple[tuple[Course, float, str], ...]:
        parts = [(Course(name, window=self.window), self.clipped, "share of clipped tokens") for name in CLIPPED]
        return (
            *parts,
            (Course(APPROXIMATE_KL, window=self.window), self.approximate_kl, "approximate KL of an update"),
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The clip fractions and the approximate KL."""
        return tuple(course for course, _, _ in self._limits)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the means with their limits."""
        for declared, limit, words in self._limits:
            metric = declared.metric
            if now.get(metric) is None:
                continue
            course = past.stat(declared)
            if course.ready and course.median > limit:
                because = f"the {words} is {course.median:.3g} (median of {self.window} observations of {metric})"
                bad = onset(past, metric, above(limit))
                return report(self, now, metric, because, onset_step=bad, level=course.median)
        return None

"""The rule `sampler-mismatch`: completions come from another policy than the one being trained."""

from __future__ import annotations

from collections.abc import Callable
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
from ._run_health import above, below, onset, report

DIFFERENCE = "sampling/sampling_logp_difference/mean"
RATIO_MIN = "sampling/importance_sampling_ratio/min"
RATIO_MEAN = "sampling/importance_sampling_ratio/mean"

HEALTHY_RATIO = 0.1
"""A smallest ratio above this is healthy; what has never been above it is that way for another reason."""


@dataclass(frozen=True, kw_only=True)
class SamplerMismatch(Detector):
    """The engine that generates gives other probabilities than the model being trained.

    ## Why it matters
    Updates are computed as if the policy had written the completions itself. Importance sampling corrects for a small
    difference; beyond that the correction is cut off or explodes, and updates point anywhere. The engine holds old
    weights, another precision, another adapter, or another model.

    ## What is normal
    A mean difference of log-probabilities below 0.1, a mean ratio around 1. The smallest ratio is an extreme value over
    thousands of tokens: above 0.1 is healthy, but some engines never reach that.

    ## What to try
    None of it can be changed while the run goes on. Axolotl: a smaller `vllm_sync_interval`. TRL: fewer
    `steps_per_generation`, `off_policy_mask_threshold=0.5`, another `importance_sampling_level` (`"token"` corrects more
    finely, `"sequence"` is steadier). Both: the same precision in the engine as in training, and a restart of the engine.

    ## False alarms
    Medians over `window` observations. A difference below `difference` counts only where it has grown five times since
    the start, a small smallest ratio only in a run that began with a healthy one.

    ## References
    Yao et al. (2025), Your efficient RL framework secretly brings you off-policy RL training (truncated importance
    sampling); Zheng et al. (2025), GSPO, arXiv 2507.18071, for ratios of whole sequences; Axolotl, Training stability.
    """

    window: int = 8
    """Observations whose median is judged."""
    difference: float = 1.0
    """Mean difference of log-probabilities that is too large in any run."""
    grown: float = 0.1
    """Mean difference that is too large where it has grown five times."""
    smallest_ratio: float = 0.01
    """Smallest importance ratio that is too small."""
    mean_ratio: float = 0.5
    """Mean importance ratio that is too small."""

    failure = FailureType.RL_COLLAPSE
    fine = "unstable"
    severity = Severity.WARNING
    reads = (DIFFERENCE, RATIO_MIN, RATIO_MEAN)
    paced_by = DIFFERENCE
    remedy = (
        rung(
            Alert(
                about="sampler-mismatch",
                advice="Axolotl: lower vllm_sync_interval. TRL: fewer steps_per_generation, off_policy_mask_threshold=0.5, "
                "or another importance_sampling_level. Neither can be changed while the run goes on.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("log-probabilities far apart", at_step=33,
              sampling__sampling_logp_difference__mean=[0.02] * 30 + [1.4] * 10),
        fires("five times what it was", at_step=33, sampling__sampling_logp_difference__mean=[0.02] * 30 + [0.3] * 10),
        fires("the smallest ratio is gone", at_step=34, sampling__importance_sampling_ratio__min=[0.4] * 30 + [0.001] * 10),
        fires("the mean ratio too", at_step=34, sampling__importance_sampling_ratio__mean=[1.0] * 30 + [0.3] * 10),
        quiet("a spike", sampling__sampling_logp_difference__mean=[0.02] * 30 + [3.0] * 2 + [0.02] * 30),
        quiet("an extreme that is always small", sampling__importance_sampling_ratio__min=[0.005] * 60),
        quiet("small and steady", sampling__sampling_logp_difference__mean=[0.05, 0.08] * 30),
    )  # fmt: skip

    @cached_property
    def _courses(self) -> tuple[Course, Course, Course]:
        return (
            Course(DIFFERENCE, window=self.window),
            Course(RATIO_MIN, window=self.window),
            Course(RATIO_MEAN, window=self.window),
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The difference of log-probabilities and the importance ratios."""
        return self._courses

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look at the differences, then at the ratios."""
        return self._by_difference(now, past) or self._by_ratio(now, past)

    def _by_difference(self, now: Signal, past: History) -> Incident | None:
        if now.get(DIFFERENCE) is None:
            return None
        course = past.stat(self._courses[0])
        level, limit = course.median, min(self.difference, max(self.grown, 5.0 * course.first))
        if not course.ready or level <= limit or (level <= self.difference and not course.has_moved_on):
            return None
        because = (
            f"log-probabilities of the sampler and the policy differ by {level:.3g} on average "
            f"(median of {self.window} observations), by {course.first:.2g} at the start"
        )
        return self._told(now, past, DIFFERENCE, because, above(limit))

    def _by_ratio(self, now: Signal, past: History) -> Incident | None:
        for course_of, limit, healthy in (
            (self._courses[1], self.smallest_ratio, HEALTHY_RATIO),
            (self._courses[2], self.mean_ratio, self.mean_ratio),
        ):
            metric = course_of.metric
            if now.get(metric) is None:
                continue
            course = past.stat(course_of)
            if not course.has_moved_on or course.first <= healthy or course.median >= limit:
                continue
            because = f"{metric} is {course.median:.3g} (median of {self.window} observations), {course.first:.2g} at the start"
            return self._told(now, past, metric, because, below(limit))
        return None

    def _told(self, now: Signal, past: History, metric: str, because: str, is_bad: Callable[[float], bool]) -> Incident:
        return report(self, now, metric, because, onset_step=onset(past, metric, is_bad))

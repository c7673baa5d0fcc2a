"""The rule `gradient-explosion`: the gradient norm is many times its usual size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.tighten_clipping import TightenClipping
from ..actions.wait import Wait
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Baseline, Outliers, OutliersTracker, Schedule, Statistic

FIRST_JUDGED = 16
"""Finite norms there must be before the rule says anything."""

LOSS_SUFFERS = 2.0
"""Standard deviations above its level at which the loss is taken to suffer from the gradients."""

PLANNED = 64
"""Observations after a rise of the learning rate in which larger gradients are expected."""

_LOSS, _RATE = Baseline("loss"), Schedule("learning_rate")
_CALM = tuple(1.2 * math.exp(0.2 * math.sin(i * i)) for i in range(100))


@dataclass(frozen=True, kw_only=True)
class GradientExplosion(Detector):
    """The gradient norm is many times its usual size.

    ## Why it matters
    One exploded gradient is a bad batch and clipping deals with it; several in a row mean that the weights have moved
    to where the loss is steep, usually some steps before the loss shows it.

    ## What to try
    1. Clip gradients (`max_grad_norm=1.0`), or more tightly.
    2. Lower `learning_rate` 2 to 3 times, or warm up for longer.
    3. Look at the batch of that step: very long, empty or repeated records.

    ## False alarms
    Norms are compared in log space, because they vary by factors: in raw units the same limit misfires 39 to 159
    times per 100,000 steps on log-normal norms. A single outlier is a warning; an error needs `persist` of the last 8
    and a loss above its level: training at the edge of stability has bursts of gradients while the loss goes on falling.
    In a run that reports a reward it stays a warning: there the loss is no measure, and rules of the reward know more.
    Healthy runs have norms of 0.1 or of a million, so the fixed `threshold` is only noted, when it is first passed,
    unless you set it.

    ## References
    ZClip (arXiv 2504.02507) for z-scores of the gradient norm against its recent past.
    """

    sigmas: float = 6.0
    """Distance from the usual norm, in standard deviations of its logarithm."""
    ratio: float = 2.0
    """Multiple of the usual norm that must also be reached."""
    certain_ratio: float = 10.0
    """Multiple of the usual norm that needs only half the `z`."""
    persist: int = 5
    """Outliers among the last 8 that make it an error."""
    threshold: float = 100.0
    """Norm above which it is an error whatever is usual; acts only when set."""

    failure = FailureType.GRADIENT_EXPLOSION
    fine = "grad_spike"
    severity = Severity.WARNING
    metric = "grad_norm"
    remedy = (
        Rung((Wait(),), success=0.5),
        Rung((RollBack(), SkipBatches()), success=0.5, repeats=3),
        Rung((RollBack(), TightenClipping()), success=0.25),  # outliers are clipped to what is usual already
        Rung((RollBack(depth=1), ScaleLearningRate()), success=0.25),
    )
    examples = (
        fires("twenty times the usual norm", at_step=100, severity=Severity.WARNING, grad_norm=(*_CALM, 24.0)),
        fires(
            "a hundred is too much for a user who says so",
            at_step=100,
            severity=Severity.ERROR,
            options={"threshold": 100.0},
            grad_norm=(*_CALM, 101.0),
        ),
        fires(
            "the loss suffers",
            at_step=100,
            severity=Severity.ERROR,
            options={"persist": 1},
            grad_norm=(*_CALM, 24.0),
            loss=(*_CALM, 9.0),
        ),
        fires(
            "the loss of a run with rewards does not suffer",
            at_step=100,
            severity=Severity.WARNING,
            options={"persist": 1},
            grad_norm=(*_CALM, 24.0),
            loss=(*_CALM, 9.0),
            reward=[0.5] * 101,
        ),
        quiet("large norms that are usual for this run", grad_norm=tuple(1e6 * x for x in _CALM)),
        quiet("a norm of exactly zero now and then", grad_norm=(*_CALM, 0.0, 0.0, 1.2, 0.0, 1.1)),
    )

    @cached_property
    def _outliers(self) -> Outliers:
        return Outliers("grad_norm", z=self.sigmas, ratio=self.ratio, certain_ratio=self.certain_ratio)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The usual norm, in log space, the level of the loss, and what the learning rate is doing."""
        return (self._outliers, _LOSS, _RATE)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest norm with the usual one, then with the user's own threshold."""
        norm = now.get("grad_norm")
        if norm is None or not math.isfinite(norm):
            return None
        by_threshold = self._check_threshold(now, norm, past)
        if by_threshold is not None and by_threshold.severity is Severity.ERROR:
            return by_threshold
        outliers = past.stat(self._outliers)
        if past.finite_count("grad_norm") <= FIRST_JUDGED or not outliers.outlier:
            return by_threshold
        lasting = outliers.count >= self.persist and self._does_harm(now, past, outliers)
        typical = outliers.baseline.typical
        return self.incident(
            now,
            f"gradient norm {norm:.4g} is {outliers.ratio:.1f} times its usual {typical:.3g}, "
            f"{outliers.count} such in the last {outliers.spec.memory}",
            severity=Severity.ERROR if lasting else Severity.WARNING,
            excess=norm - typical,
            onset_step=past.step_ago("grad_norm", outliers.onset),
            typical=typical,
            z=outliers.baseline.z,
            in_a_row=outliers.in_a_row,
        )

    def _does_harm(self, now: Signal, past: History, outliers: OutliersTracker) -> bool:
        """Say whether the loss suffers; where none is reported, whether the norm leaves no doubt."""
        if past.latest("reward") is not None:  # such a run's loss says nothing of how it does
            return False
        schedule = past.stat(_RATE)
        if min(schedule.since_jump, schedule.since_climb) <= PLANNED:
            return False
        loss = now.get("loss")
        if loss is None:
            return outliers.ratio > self.certain_ratio
        return not math.isfinite(loss) or past.stat(_LOSS).z > LOSS_SUFFERS

    def _check_threshold(self, now: Signal, norm: float, past: History) -> Incident | None:
        if norm <= self.threshold:
            return None
        act = "threshold" in self.given
        before = past.last("grad_norm", 1)
        first_passed = bool(before) and before[0] <= self.threshold
        if not (act or first_passed):
            return None
        return self.incident(
            now,
            f"gradient norm {norm:.4g} is above {self.threshold:g} (threshold)",
            severity=Severity.ERROR if act else Severity.INFO,
            excess=norm - self.threshold,
            onset_step=now.step,
        )

"""The rule `loss-spike`: one loss stands far above the others."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.roll_back import RollBack
from ..actions.skip_batches import SkipBatches
from ..actions.wait import Wait
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Average, Baseline, Statistic

FIRST_JUDGED = 16
"""Finite losses there must be before the rule says anything."""

_LEVEL = Baseline("loss")
_CALM = tuple(2.5 + 0.1 * math.sin(i * i) for i in range(100))


@dataclass(frozen=True, kw_only=True)
class LossSpike(Detector):
    """One loss stands far above its level.

    ## Why it matters
    Most spikes are gone after a few steps, but a spike is how a bad batch, a bit flip or a rate that is too high
    first shows. While one is open its samples stay outside the baseline and no snapshot counts as good.

    ## What to try
    1. Nothing, where the loss is back after a few steps.
    2. Where spikes repeat: lower `learning_rate`, clip more tightly (`max_grad_norm`), or look at the batches of
       these steps.

    ## False alarms
    Heavy-tailed noise has real outliers: none for Gaussian and autocorrelated noise, about 0.1 % of observations for
    Student t with 3 degrees of freedom and for log-normal noise. It is a warning for that reason. The fixed multiple
    `factor` of the running mean was measured to miss a spike of +2.0 on a loss of 2.7: it is only noted unless you
    set it.

    ## References
    OLMo-core's stability monitor uses six standard deviations over 128 observations; this rule uses robust estimates.
    """

    sigmas: float = 6.0
    """Distance from the level, in standard deviations."""
    relative: float = 0.10
    """Distance from the level, as a share of it, that a spike must also have."""
    factor: float = 5.0
    """Multiple of the running mean; acts only when set."""
    window: int = 50
    """Observations in the running mean that `factor` refers to."""

    failure = FailureType.LOSS_SPIKE
    fine = "loss_spike"
    severity = Severity.WARNING
    metric = "loss"
    remedy = (
        Rung((Wait(),), success=0.8),
        Rung((RollBack(), SkipBatches()), success=0.7),
    )
    examples = (
        fires("one loss far above the others", at_step=100, severity=Severity.WARNING, loss=(*_CALM, 4.5, 2.5)),
        fires(
            "five times the mean is an error for a user who says so",
            at_step=100,
            severity=Severity.ERROR,
            options={"factor": 5.0},
            loss=(*_CALM, 14.0),
        ),
        quiet("ordinary noise", loss=_CALM),
        quiet("a large step down", loss=_CALM + tuple(x - 1.0 for x in _CALM)),
    )

    @cached_property
    def _average(self) -> Average:
        return Average("loss", window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The level of the loss and its plain running mean."""
        return (_LEVEL, self._average)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest loss with the level, then with the user's own threshold."""
        loss = now.get("loss")
        if loss is None or not math.isfinite(loss):
            return None
        by_factor = self._check_factor(now, loss, past)
        if by_factor is not None and by_factor.severity is Severity.ERROR:
            return by_factor
        # With a reward in sight the loss is a policy surrogate around zero, and its outliers mean nothing.
        if past.latest("reward") is not None:
            return None
        baseline = past.stat(_LEVEL)
        size = max(abs(baseline.level), 0.2 * baseline.top)
        if (
            past.finite_count("loss") <= FIRST_JUDGED
            or baseline.z <= self.sigmas
            or baseline.excess <= self.relative * size
        ):
            return by_factor
        return self.incident(
            now,
            f"loss {loss:.4g} is {baseline.excess:.3g} above its level of {baseline.level:.3g}, "
            f"{baseline.z:.1f} standard deviations",
            excess=baseline.excess,
            onset_step=now.step,
            level=baseline.level,
            scale=baseline.scale,
            z=baseline.z,
        )

    def _check_factor(self, now: Signal, loss: float, past: History) -> Incident | None:
        average = past.stat(self._average)
        if past.count("loss") < FIRST_JUDGED or average.mean <= 0.0 or loss <= self.factor * average.mean:
            return None
        return self.incident(
            now,
            f"loss {loss:.4g} is {loss / average.mean:.1f} times its running mean {average.mean:.4g} "
            f"(factor = {self.factor:g})",
            severity=Severity.ERROR if "factor" in self.given else Severity.INFO,
            excess=loss - average.mean,
            onset_step=now.step,
            mean=average.mean,
        )

"""The rule `gradient-vanishing`: gradients are next to nothing and the loss stands still."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Baseline, Statistic, Trend

_NORM, _LOSS = Baseline("grad_norm"), Baseline("loss")


@dataclass(frozen=True, kw_only=True)
class GradientVanishing(Detector):
    """The gradient norm is next to zero for a long time while the loss does not move.

    ## Why it matters
    Nothing is learned: dead activations, frozen parameters, a detached graph, or a loss scale that underflows. The run
    costs as much as one that learns.

    ## What to try
    1. Check that parameters are trainable and that labels are not all masked.
    2. Raise `learning_rate` 3 to 10 times.
    3. Look for saturated activations, a loss scale that is too small, or inputs that are not normalised.

    ## False alarms
    A run that has fitted its data has small gradients too, but its loss is then a small part of what it was: the rule
    asks for a loss above `unlearned` of its largest level. Runs that report a reward are left to their own rules.

    ## References
    Micikevicius et al. (2017), Mixed precision training, arXiv 1710.03740, for gradients that underflow.
    """

    below: float = 1e-6
    """Gradient norm that counts as nothing."""
    share: float = 1e-4
    """Share of the largest usual norm that counts as nothing."""
    unlearned: float = 0.5
    """Share of its largest level that the loss must still have."""
    blocks: int = 16
    """Blocks of 8 observations over which the loss must have stood still."""

    failure = FailureType.OTHER
    fine = "grad_vanishing"
    severity = Severity.WARNING
    metric = None
    paced_by = "loss"
    remedy = (Rung((Alert(),), success=0.1),)
    examples = (
        fires(
            "no gradient from the start",
            at_step=128,
            loss=[2.3 + 0.01 * math.sin(i * i) for i in range(140)],
            grad_norm=[1e-9] * 140,
        ),
        quiet(
            "small gradients after everything is learned",
            loss=[2.3 * math.exp(-i / 20) for i in range(400)],
            grad_norm=[math.exp(-i / 20) for i in range(400)],
        ),
    )

    @cached_property
    def _trend(self) -> Trend:
        return Trend("loss", block=8, blocks=self.blocks)

    @property
    def looks_every(self) -> int:
        """Return the length of a block."""
        return self._trend.block

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The usual norm, the level of the loss and its slope."""
        return (_NORM, _LOSS, self._trend)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look whenever a block of losses has been completed."""
        if now.get("grad_norm") is None or past.latest("reward") is not None:
            return None
        norm, loss, trend = past.stat(_NORM), past.stat(_LOSS), past.stat(self._trend)
        if not trend.ready or trend.filled or not norm.ready:
            return None
        nothing = max(self.below, self.share * norm.top)
        moving = trend.slope < -2.0 * trend.error or trend.change < -0.01 * abs(trend.level)
        if norm.level > nothing or moving or trend.level < self.unlearned * loss.top or loss.top == 0.0:
            return None
        return self.incident(
            now,
            f"gradient norm is about {norm.level:.2g} and the loss has stood at {trend.level:.4g} "
            f"for {trend.span} observations",
            onset_step=past.step_ago("grad_norm", trend.span),
            norm=norm.level,
        )

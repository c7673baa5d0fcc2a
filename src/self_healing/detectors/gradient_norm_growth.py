"""The rule `gradient-norm-growth`: the gradient norm keeps growing."""

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
from ..core.statistics import Statistic, Trend


@dataclass(frozen=True, kw_only=True)
class GradientNormGrowth(Detector):
    """The gradient norm has grown steadily over a long window.

    ## Why it matters
    Norms that grow by a steady factor end in an explosion, often thousands of steps later, and the usual causes
    (missing weight decay, logits that drift, a rate that is too high late in training) are cheap to cure early.

    ## What to try
    1. Lower `learning_rate`, or let it fall sooner.
    2. Watch the norms of single layers: logits and attention often grow first (z-loss, QK-norm).
    3. Raise `weight_decay` a little where weights grow along.

    ## False alarms
    Some healthy runs end with larger gradients than they had in the middle. The rule asks for growth by `growth` times
    within one window, on a straight line in log space, and only warns. Early training is left alone, since every window
    must be full. Growth while the learning rate warms up is not distinguished.

    ## References
    Wortsman et al. (2023), Small-scale proxies for large-scale Transformer training instabilities, arXiv 2309.14322.
    """

    block: int = 16
    """Observations averaged into one point."""
    blocks: int = 24
    """Points in the window."""
    growth: float = 3.0
    """Factor of growth over the window."""
    certainty: float = 8.0
    """Slope divided by its standard error."""

    failure = FailureType.GRADIENT_EXPLOSION
    fine = "grad_norm_growth"
    severity = Severity.WARNING
    metric = None
    paced_by = "grad_norm"
    remedy = (Rung((Alert(),), success=0.1),)
    examples = (
        fires("ten times larger within 384 observations", at_step=384, grad_norm=[10 ** (i / 384) for i in range(400)]),
        quiet("a norm that falls and levels off", grad_norm=[1.0 + 9.0 * math.exp(-i / 50) for i in range(500)]),
    )

    @cached_property
    def _trend(self) -> Trend:
        return Trend("grad_norm", block=self.block, blocks=self.blocks, log=True)

    @property
    def looks_every(self) -> int:
        """Return the length of a block."""
        return self.block

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The slope of the logarithm of the norm."""
        return (self._trend,)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look at the line whenever a block has been completed."""
        if now.get("grad_norm") is None:
            return None
        trend = past.stat(self._trend)
        if not trend.ready or trend.filled or trend.change < math.log(self.growth):
            return None
        if trend.slope < self.certainty * trend.error:
            return None
        return self.incident(
            now,
            f"gradient norm has grown {math.exp(trend.change):.1f} times within {trend.span} observations, "
            f"to about {math.exp(trend.means[-1]):.3g}",
            onset_step=past.step_ago("grad_norm", trend.span),
            growth=math.exp(trend.change),
        )

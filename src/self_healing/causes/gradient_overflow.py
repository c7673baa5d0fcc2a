"""The cause `gradient-overflow`."""

from __future__ import annotations

import math

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import began_in_backward, began_in_forward, growth


class GradientOverflow(Cause):
    """The gradient exploded in the backward pass and took the loss with it.

    The norm grows, becomes infinite, and one optimizer step later the loss is NaN. A gradient norm that stops being
    finite first points to the backward pass; a loss that does so after a healthy norm points to the forward pass.
    """

    explains = ("loss-not-finite", "gradient-not-finite", "weights-not-finite")
    confirm = (
        "Switch on torch.autograd.set_detect_anomaly(True) for the failing step: it is slow, and names the operation "
        "whose gradient is not finite."
    )
    fixes = (
        "Clip gradients: max_grad_norm 1.0.",
        "Lower the learning rate 2 to 5 times.",
        "Reduce the failing step to one GPU and one batch to get distributed training out of the picture.",
    )
    remedy = (
        rung(SkipStep(), success=0.8),
        rung(TightenClipping(), RewarmLearningRate(), success=0.5),
        rung(RollBack(), TightenClipping(), RewarmLearningRate(), success=0.6),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at which of loss and gradient norm failed first, and whether norms had grown."""
        newest = past.latest("grad_norm")
        if newest is None:
            return Evidence(weight=0.25)
        norms = past.last("grad_norm", 32)
        grown = growth(norms)
        weight, found = 0.3, []
        if began_in_backward(past):
            weight = 0.55
            found.append("the gradient norm stopped being finite before the loss did")
        elif began_in_forward(past) and grown < 2:
            return None
        if math.isinf(newest):
            weight = max(weight, 0.6)
            found.append("the gradient norm is infinite")
        if grown >= 2:
            weight = max(weight + 0.1, 0.6)
            found.append(f"gradient norms had grown {grown:.1f} times before, to {norms[-1]:.3g}")
        return Evidence(weight=weight, found=tuple(found))

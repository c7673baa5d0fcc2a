"""The cause `log-softmax-overflow`."""

from __future__ import annotations

import math

from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import began_in_backward

LARGE_DIFFERENCE = 1.0
LARGE_KL = 10.0


class LogSoftmaxOverflow(Cause):
    """A log-probability became so negative that exp() of a difference overflowed.

    Ratios of probabilities are computed as exp of a difference of logarithms. A token the model holds nearly
    impossible makes the difference huge, and the loss infinite or NaN in the forward pass while gradients were fine.
    """

    explains = ("loss-not-finite", "eval-not-finite")
    confirm = (
        "Print the smallest log-probability and the largest logit of the failing batch; values beyond -100 or so, or "
        "logits in the thousands, settle it. Computing the loss in fp32 makes it go away."
    )
    fixes = (
        "Compute log-softmax and the loss in fp32.",
        "Clamp the difference of log-probabilities before exp().",
        "Look for tokens in the data that the model cannot produce, such as ids outside its vocabulary.",
    )
    remedy = (
        rung(SkipStep(), success=0.6),
        rung(RollBack(), SkipBatches(), success=0.5),
        rung(RollBack(depth=1), ScaleLearningRate(), success=0.4),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for an infinite loss after healthy gradients, and for log-probabilities far apart."""
        if began_in_backward(past):
            return None
        found = []
        for metric, limit in (("sampling/sampling_logp_difference/mean", LARGE_DIFFERENCE), ("kl", LARGE_KL)):
            recent = max(past.last(metric, 8), default=0.0)
            if recent > limit:
                found.append(f"{metric} was up to {recent:.3g} before")
        newest = past.latest("eval_loss" if incident.name == "eval-not-finite" else "loss")
        if newest is not None and math.isinf(newest):
            found.append("the loss is infinite, not NaN: an exp or a log overflowed")
        return Evidence(weight=0.55 if found else 0.3, found=tuple(found))

"""The cause `gradient-clipping-off`."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

LOOSE = 10.0
REGULARLY = 0.25


class GradientClippingOff(Cause):
    """Nothing limits the gradient norm, so single batches can throw the weights off.

    Most configurations clip at 1.0. Without a limit, or with one that is never reached, the longest gradient of a
    thousand decides where the weights go.
    """

    explains = (
        "gradient-explosion", "gradient-norm-growth", "loss-spike", "loss-divergence", "loss-not-finite",
        "gradient-not-finite",
    )  # fmt: skip
    confirm = (
        "Compare the logged norms, taken before clipping, with max_grad_norm: if they never meet, nothing is clipped."
    )
    fixes = (
        "Clip gradients: max_grad_norm 1.0.",
        "Lower the learning rate 2 to 5 times.",
        "Raise gradient_accumulation_steps to smooth out noisy batches.",
        "If norms regularly exceed 10.0, look for values that are not finite as well.",
    )
    remedy = (
        rung(TightenClipping(), success=0.6),
        rung(RollBack(), TightenClipping(), success=0.6),
        rung(RollBack(depth=1), TightenClipping(), RewarmLearningRate(), success=0.5),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Read the limit, and see how often norms were above 10."""
        limit = number(past, "max_grad_norm")
        if limit is None:
            return Evidence(weight=0.2)
        norms = past.last("grad_norm", 64)
        high = sum(norm > LOOSE for norm in norms)
        if 0 < limit <= LOOSE:
            return None
        found = [f"max_grad_norm is {limit:g}, so gradients are hardly clipped" if limit > 0 else "clipping is off"]
        often = bool(norms) and high >= REGULARLY * len(norms)
        if often:
            found.append(f"{high} of the last {len(norms)} gradient norms were above {LOOSE:g}")
        about_gradients = incident.name.startswith("gradient-")
        weight = 0.6 if often and about_gradients else 0.5 if often or about_gradients else 0.35
        return Evidence(weight=weight, found=tuple(found))

"""The cause `half-precision-overflow`."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, word

EXHAUSTED = 1.0
LOW = 16.0
FALL = 64.0


class HalfPrecisionOverflow(Cause):
    """Sixteen bits cannot hold the numbers that occur.

    fp16 ends at 65,504, so activations and scaled gradients overflow; the loss scaler answers by halving its scale,
    and a scale that keeps falling means that it is losing. bf16 has the range of fp32 but only eight bits of
    precision, which some operations do not survive.
    """

    explains = (
        "loss-not-finite", "gradient-not-finite", "weights-not-finite", "loss-spike", "eval-not-finite",
        "loss-exactly-zero",
    )  # fmt: skip
    confirm = "Run the same steps in fp32, for diagnosis only: trouble that goes away was the precision."
    fixes = (
        "Use bf16 instead of fp16 where the GPU has it (Ampere and newer).",
        "With bf16: true and severe spikes, try fp32 for diagnosis and keep the sensitive operations in fp32.",
        "Lower the learning rate 2 to 5 times so that values stay in range.",
    )
    remedy = (
        rung(SkipStep(), success=0.6),
        rung(RollBack(), RewarmLearningRate(), success=0.5),
        rung(RollBack(depth=1), ScaleLearningRate(), TightenClipping(), success=0.4),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at the precision and at where the loss scale has gone."""
        precision = word(past, "precision")
        if not precision:
            return Evidence(weight=0.2)
        if "bf16" in precision or "bfloat16" in precision:
            return Evidence(weight=0.25) if incident.name in ("loss-spike", "loss-not-finite") else None
        if "16" not in precision:
            return None
        return self._scale(past) or Evidence(weight=0.35, found=("the run is in fp16",))

    def _scale(self, past: History) -> Evidence | None:
        scale = finite_latest(past, "loss_scale")
        if scale is None:
            return None
        if scale <= EXHAUSTED:
            return Evidence(weight=0.85, found=(f"the loss scale is down to {scale:g} and cannot fall further",))
        highest = max([scale, *past.last("loss_scale", 32)])
        if scale <= LOW or highest >= FALL * scale:
            return Evidence(weight=0.7, found=(f"the loss scale fell from {highest:g} to {scale:g}",))
        return None

"""The rule `weights-not-finite`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.average_neighbours import AverageNeighbours
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal


@dataclass(frozen=True, kw_only=True)
class WeightsNotFinite(Detector):
    """Weights or optimizer state hold NaN or infinite values.

    ## Why it matters
    Nothing computed from such weights means anything, and no later step repairs them: only a state from before helps.

    ## What to try
    1. Go back to a checkpoint from before: from here on nothing can be learned.
    2. Find what made them so: the first step whose loss or gradient norm was not finite.
    3. Clip gradients with a guard against NaN, or train in `bf16` instead of `fp16`.

    ## False alarms
    None known: adapters report the count of non-finite tensors, which is zero in a healthy run.

    ## References
    - Megatron-LM, rerun state machine: telling a broken device from broken state
    """

    failure = FailureType.NAN_LOSS
    fine = "nan_weights"
    severity = Severity.ERROR
    reads = ("weights_nonfinite",)
    remedy = (
        rung(RollBack(), success=0.9),
        rung(RollBack(), SkipBatches(), success=0.9),
        rung(RollBack(depth=1), SkipBatches(), ScaleLearningRate(), success=0.6),
        rung(AverageNeighbours(), success=0.3),
        rung(StopRun(), success=1.0),
    )
    examples = (
        fires("one tensor is enough", weights_nonfinite=[0.0, 0.0, 1.0], at_step=2, severity=Severity.ERROR),
        fires(
            "before the first step",
            weights_nonfinite=[1.0],
            facts={"not_finite_at_start": "lm_head.weight"},
            at_step=0,
            severity=Severity.ERROR,
        ),
        quiet("all finite", weights_nonfinite=[0.0] * 5),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire where the adapter counted a non-finite tensor, and say in which step they were used first."""
        if not isinstance(now, Metrics) or not (tensors := now.get("weights_nonfinite")):
            return None
        told = f"{tensors:g} tensors of weights or optimizer state are not finite"
        seen_in, at_start = now.get("weights_seen_in_step"), past.facts.get("not_finite_at_start")
        if at_start:
            told = (
                f"the state that this training began with is not finite ({at_start}), and no return can mend that: look at how "
                "the model was loaded, at its dtype and its initialisation, or train from another checkpoint"
            )
        return self.incident(now, told, onset_step=None if seen_in is None else int(seen_in), tensors=tensors)

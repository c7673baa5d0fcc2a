"""The cause `corrupted-state`."""

from __future__ import annotations

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident

SUSTAINED = 3


class CorruptedState(Cause):
    """Weights or optimizer moments are no longer finite.

    Once a NaN is in a weight, every batch gives NaN and no skipped step brings the weight back; only an earlier
    state does. Checkpoints written since then are broken too.
    """

    explains = ("weights-not-finite", "loss-not-finite", "gradient-not-finite", "eval-not-finite")
    confirm = "Count the non-finite values in the weights and moments: any at all settles it."
    fixes = (
        "Resume from a checkpoint written before the first NaN; later ones hold it too.",
        "Skip updates whose gradient is not finite, so that a NaN never reaches the weights.",
    )
    remedy = (
        rung(RollBack(), SkipBatches(), success=0.9),
        rung(RollBack(depth=1), SkipBatches(), RewarmLearningRate(), success=0.6),
        rung(RollBack(depth=2), ScaleLearningRate(), success=0.4),
        rung(StopRun()),
    )

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Count the broken tensors, or infer them from NaNs that no longer stop."""
        broken = past.latest("weights_nonfinite")
        if broken is not None and broken > 0:
            return Evidence(weight=0.95, found=(f"{broken:g} weight tensor(s) hold values that are not finite",))
        if broken is not None:
            return None
        run = max(past.nonfinite_run("loss"), past.nonfinite_run("grad_norm"))
        if run >= SUSTAINED:
            return Evidence(weight=0.6, found=(f"not finite for {run} observations in a row, whatever the batch",))
        return Evidence(weight=0.2)

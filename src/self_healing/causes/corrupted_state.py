"""The cause `corrupted-state`."""

from __future__ import annotations

from ..actions.average_neighbours import AverageNeighbours
from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..core.action import Ladder, rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident

SUSTAINED = 3

NOT_FINITE = ("weights-not-finite", "loss-not-finite", "gradient-not-finite", "eval-not-finite")


class CorruptedState(Cause):
    """Weights or optimizer moments hold numbers that training did not put there.

    Once a NaN is in a weight, every batch gives NaN and no skipped step brings the weight back; only an earlier
    state does. Numbers that are finite and wrong show in an audit of the state, or in gradients that are outliers batch
    after batch: one bad batch makes one outlier. Checkpoints written since then are broken too.
    """

    explains = (*NOT_FINITE, "unexplained-state", "gradient-explosion", "loss-divergence")
    confirm = (
        "Count the non-finite values in the weights and moments: any at all settles it. Else train the same steps again "
        "from an earlier state with the same data: what does not come back was the state, what does is the data or the rate."
    )
    fixes = (
        "Resume from a checkpoint written before the first NaN or the first unexplained change; later ones hold it too.",
        "Skip updates whose gradient is not finite, so that a NaN never reaches the weights.",
        "Where it comes back on the same machine, look at its memory and have its accelerator tested.",
    )
    remedy = (
        rung(RollBack(), success=0.9),
        rung(RollBack(), SkipBatches(), success=0.9),
        rung(RollBack(depth=1), SkipBatches(), RewarmLearningRate(), success=0.6),
        rung(RollBack(depth=2), ScaleLearningRate(), success=0.4),
        rung(AverageNeighbours(), success=0.3),
        rung(StopRun()),
    )

    def ladder(self, incident: Incident) -> Ladder:
        """Leave an audit's findings to their rule: there no batch is suspected, so none is skipped."""
        return () if incident.name == "unexplained-state" else self.remedy

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Count the broken tensors, or infer them from trouble that no longer stops."""
        unexplained = past.latest("state_unexplained")
        if unexplained is not None and unexplained > 0:
            return Evidence(weight=0.95, found=(f"{unexplained:g} tensor(s) changed as no step can have changed them",))
        if incident.name not in NOT_FINITE:
            return None if unexplained == 0 else self._from_outliers(incident)
        broken = past.latest("weights_nonfinite")
        if broken is not None and broken > 0:
            return Evidence(weight=0.95, found=(f"{broken:g} weight tensor(s) hold values that are not finite",))
        if broken is not None:
            return None
        run = max(past.nonfinite_run("loss"), past.nonfinite_run("grad_norm"))
        if run >= SUSTAINED:
            return Evidence(weight=0.6, found=(f"not finite for {run} observations in a row, whatever the batch",))
        return Evidence(weight=0.2)

    def _from_outliers(self, incident: Incident) -> Evidence | None:
        """Weigh gradient norms that stay outliers above a bad batch, and below a rate or a warm-up that is off."""
        in_a_row = incident.numbers.get("in_a_row", 0.0)
        if incident.name != "gradient-explosion" or in_a_row < SUSTAINED:
            return None
        return Evidence(weight=0.58, found=(f"the gradient norm is an outlier {in_a_row:g} times in a row",))

"""The cause `bad-batch`."""

from __future__ import annotations

from ..actions.roll_back import RollBack
from ..actions.skip_batches import SkipBatches
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import CALM, ENOUGH, finite_latest, growth, usual

JUMP = 5.0
SUSTAINED = 3


class BadBatch(Cause):
    """One batch held a malformed or extreme record.

    Everything was calm, one observation stands out, and the next are normal again unless the harm reached the
    weights. A single very long or broken record is enough. Where gradients stay outliers batch after batch, several
    bad batches in a row are possible and a bad state is likelier.
    """

    explains = ("loss-spike", "gradient-explosion", "loss-divergence", "gradient-not-finite", "loss-not-finite")
    confirm = (
        "Replay the batch from a good state: if the same records spike again it is the data, if not it was state or "
        "chance. Without packing it is easier to see which record does it."
    )
    fixes = (
        "Find the batch and look for malformed or extremely long records.",
        "Set sample_packing: false for a while and see whether spikes go with certain batches.",
    )
    remedy = (
        rung(SkipStep(), success=0.8),
        rung(RollBack(), SkipBatches(), success=0.6, repeats=4),
        rung(RollBack(depth=1), SkipBatches(margin=8), success=0.5),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for one observation that stands out of a calm past."""
        run = max(past.nonfinite_run("loss"), past.nonfinite_run("grad_norm"))
        losses, norms = past.before(incident, "loss", 32), past.before(incident, "grad_norm", 32)
        if run >= SUSTAINED or growth(norms) > CALM or growth(losses) > CALM:
            return None
        if max(len(losses), len(norms)) < ENOUGH:
            return Evidence(weight=0.2)
        if run:
            return Evidence(weight=0.4, found=(f"not finite for {run} observation(s) after a calm past",))
        if incident.name == "loss-divergence" or incident.numbers.get("in_a_row", 0.0) >= SUSTAINED:
            return Evidence(weight=0.25)
        jumps = [jump for jump in (self._jump(past, "loss"), self._jump(past, "grad_norm")) if jump]
        if len(jumps) > 1:
            return Evidence(weight=0.55, found=(*jumps, "both were calm before"))
        return Evidence(weight=0.4, found=tuple(jumps))

    def _jump(self, past: History, metric: str) -> str:
        newest, normal = finite_latest(past, metric), usual(past, metric)
        limit = 2.0 if metric == "loss" else JUMP
        if newest is None or normal is None or normal <= 0 or newest < limit * normal:
            return ""
        return f"{metric} jumped to {newest / normal:.1f} times its usual {normal:.3g}"

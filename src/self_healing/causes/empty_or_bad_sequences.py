"""The cause `empty-or-bad-sequences`."""

from __future__ import annotations

from ..actions.quarantine_records import QuarantineRecords
from ..actions.roll_back import RollBack
from ..actions.skip_batches import SkipBatches
from ..actions.skip_step import SkipStep
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import began_in_backward

SUSTAINED = 3
PLENTY = 16


class EmptyOrBadSequences(Cause):
    """Some records are empty or malformed, and a mean over nothing is NaN.

    The log-probability of an empty completion, or the loss of a record without a single trainable token, is zero
    divided by zero. It shows as NaN in certain batches only, with healthy ones in between.
    """

    explains = ("loss-not-finite", "gradient-not-finite", "eval-not-finite")
    confirm = (
        "Print the batch that gives NaN: look for empty sequences, token ids outside the vocabulary and odd padding. "
        "The same batch fails again; its neighbours do not."
    )
    fixes = (
        "Drop records whose prompt or answer is empty after tokenization and truncation.",
        "Check the batch for extreme token ids and unexpected padding.",
    )
    remedy = (
        rung(SkipStep(), success=0.8),
        rung(QuarantineRecords(), success=0.5),
        rung(RollBack(), SkipBatches(), success=0.5),
        rung(StopRun()),
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for NaNs that come and go."""
        metric = {"gradient-not-finite": "grad_norm", "eval-not-finite": "eval_loss"}.get(incident.name, "loss")
        run, total = past.nonfinite_run(metric), past.nonfinite_total(metric)
        finite = past.finite_count(metric)
        if run >= SUSTAINED:
            return None
        if total > run > 0 and finite >= PLENTY:
            return Evidence(
                weight=0.6,
                found=(f"{metric} was not finite {total} times among {finite} healthy values, never for long",),
            )
        if incident.name == "loss-not-finite" and began_in_backward(past):
            return None
        return Evidence(weight=0.35)

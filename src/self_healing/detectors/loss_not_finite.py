"""The rule `loss-not-finite`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from ..actions.alert import Alert
from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.scale_learning_rate import ScaleLearningRate
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..core.action import Ladder, rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal

NAN_ACTIONS = ("skip", "warn", "rollback", "raise")

NONFINITE_LADDER: Ladder = (
    rung(TightenClipping(), RewarmLearningRate(), success=0.6),
    rung(RollBack(), SkipBatches(), success=0.6),
    rung(RollBack(depth=1), SkipBatches(), ScaleLearningRate(), success=0.6),
)
"""What is tried against updates that keep being non-finite, before the run is stopped."""

_STOP: Ladder = (rung(StopRun(), success=1.0),)
_RETURN_AT_ONCE: Ladder = (rung(RollBack(), success=0.5), *NONFINITE_LADDER[1:], *_STOP)


@dataclass(frozen=True, kw_only=True)
class LossNotFinite(Detector):
    """The loss is NaN or infinite.

    ## Why it matters
    One such update destroys every weight, and the stock Trainer's filter then reports a loss of 0.0. A single one
    is skipped before it reaches the weights and only warned about; several in a row mean that skipping does not help.

    ## What to try
    1. Look at the batch of that step, one record at a time.
    2. Train in `bf16` instead of `fp16`.
    3. Lower `learning_rate` 2 to 3 times and clip gradients (`max_grad_norm=1.0`).

    ## False alarms
    Some losses (CTC, for one) are infinite now and then without harm, and a loss scaler looks for its scale with
    overflows. Raise `patience`, or set `action = "warn"` to let such steps through.

    ## References
    - ZClip, arXiv:2504.02507
    - huggingface/transformers `logging_nan_inf_filter`: why a log may look clean while the weights are gone
    """

    patience: int = 3
    """Non-finite steps in a row that start the ladder."""
    stop_after: int = 10
    """Non-finite steps in a row that stop the run, whatever was tried."""
    action: str = "skip"
    """`skip` the update; `warn` lets it through; `rollback` returns at once; `raise` stops at once."""

    failure = FailureType.NAN_LOSS
    fine = "nan_loss"
    severity = Severity.WARNING
    metric = "loss"
    remedy = (rung(Alert(), success=0.1), *NONFINITE_LADDER, *_STOP)
    examples = (
        fires("one NaN is a warning", loss=[2.0, 2.1, nan, 2.0], at_step=2, severity=Severity.WARNING),
        fires("so is one infinity", loss=[2.0, inf], at_step=1, severity=Severity.WARNING),
        fires("asked to return at once", loss=[2.0, nan], options={"action": "rollback"}, at_step=1,
              severity=Severity.ERROR),
        quiet("a huge loss is still a number", loss=[2.0, 1e30, 2.0]),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        super().__post_init__()
        check_nonfinite_options(self, self.patience, self.stop_after, self.action)

    def ladder(self, incident: Incident) -> Ladder:
        """Follow the user's `action`; the run is stopped only after `stop_after` steps in a row."""
        return nonfinite_ladder(self.action, self.stop_after, incident)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire on every non-finite loss; how bad it is depends on how many came in a row."""
        if not isinstance(now, Metrics) or "loss" not in now.values or now.is_finite("loss"):
            return None
        in_a_row = past.nonfinite_run("loss")
        severity, stage = nonfinite_severity(self.action, self.patience, self.stop_after, in_a_row)
        because = f"loss is {now.values['loss']}, {in_a_row} in a row"
        return self.incident(
            now, because, severity=severity, stage=stage, onset_step=max(0, now.step - in_a_row + 1), in_a_row=in_a_row
        )


def check_nonfinite_options(rule: Detector, patience: int, stop_after: int, action: str) -> None:
    """Refuse options that make no sense; shared by the rules about non-finite numbers."""
    if stop_after < patience:
        rule.refuse("stop_after", f"must be at least patience, which is {patience}")
    if action not in NAN_ACTIONS:
        rule.refuse("action", f"must be one of {', '.join(NAN_ACTIONS)}")


def nonfinite_severity(action: str, patience: int, stop_after: int, in_a_row: int) -> tuple[Severity, int]:
    """Return severity and stage of so many non-finite values in a row."""
    if action == "warn":
        return Severity.WARNING, 0
    if action in ("rollback", "raise"):
        return Severity.ERROR, 1
    if in_a_row >= stop_after:
        return Severity.ERROR, 2
    return (Severity.ERROR, 1) if in_a_row >= patience else (Severity.WARNING, 0)


def nonfinite_ladder(action: str, stop_after: int, incident: Incident) -> Ladder:
    """Return the ladder for non-finite values under the user's `action`."""
    if action == "raise" or incident.numbers.get("in_a_row", 0) >= stop_after:
        return _STOP
    if action == "rollback":
        return _RETURN_AT_ONCE
    if incident.severity is Severity.WARNING:
        return (rung(Alert(), success=0.1),)
    return NONFINITE_LADDER

"""The rule `eval-not-finite`."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal


@dataclass(frozen=True, kw_only=True)
class EvalNotFinite(Detector):
    """The evaluation loss is NaN or infinite.

    ## Why it matters
    Best-model selection and early stopping silently stop working. With a finite training loss the model is usually
    well and the evaluation is not: rows whose labels are all masked, or another precision than in training.

    ## What to try
    1. Evaluate record by record and look at the first whose loss is not finite: often all of its labels are
       masked.
    2. Evaluate in `bf16` or full precision instead of `fp16`.
    3. Where the training loss is finite, look at `eval_accumulation_steps` and custom metrics.

    ## False alarms
    An evaluation set with a row that has no target token gives NaN for a healthy model; fix the row or ignore the rule.

    ## References
    - PyTorch CrossEntropyLoss: the mean over no target token is NaN
    """

    failure = FailureType.NAN_LOSS
    fine = "nan_eval"
    severity = Severity.WARNING
    reads = ("eval_loss",)
    metric = "eval_loss"
    remedy = (rung(Alert(), success=0.1),)
    examples = (
        fires("evaluation is NaN", loss=[2.0, 1.9, 1.8], eval_loss=[None, None, nan], at_step=2),
        quiet("evaluation is a number", loss=[2.0, 1.9], eval_loss=[None, 2.1]),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire on every non-finite evaluation loss."""
        if not isinstance(now, Metrics) or "eval_loss" not in now.values or now.is_finite("eval_loss"):
            return None
        train = past.latest("loss")
        because = f"evaluation loss is {now.values['eval_loss']}"
        if train is not None:
            because += f" while the training loss is {train:.4g}"
        return self.incident(now, because, in_a_row=past.nonfinite_run("eval_loss"))

"""The rule `eval-gap-growing`."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal


@dataclass(frozen=True, kw_only=True)
class EvalGapGrowing(Detector):
    """The evaluation loss rises from its best while the training loss goes on falling.

    ## Why it matters
    The model is learning its training set by heart. The best checkpoint is behind; what follows costs money and
    makes it worse.

    ## What to try
    1. Take the checkpoint with the lowest evaluation loss (`load_best_model_at_end=True`).
    2. Train for fewer epochs, or stop early (`EarlyStoppingCallback`).
    3. More data, `weight_decay`, dropout, or a smaller `r` of LoRA.

    ## False alarms
    A small evaluation set is noisy: the rise must last for two evaluations and be larger than `rise`. A loss may rise
    while the accuracy that matters still improves.

    ## References
    - Axolotl documentation, training stability: overfitting
    """

    rise: float = 0.03
    """Relative rise above the best evaluation loss that counts, in the last two evaluations."""
    gap: float = 2.0
    """Evaluation minus training loss that is noted; a full trigger when set by the user."""

    failure = FailureType.OVERFITTING
    fine = "overfitting"
    severity = Severity.WARNING
    reads = ("eval_loss",)
    paced_by = "eval_loss"
    remedy = (rung(Alert(), success=0.1),)
    examples = (
        fires("evaluation turns up", loss=[1.0, 0.9, 0.8, 0.7, 0.6], eval_loss=[1.0, 0.9, 0.95, 1.0, 1.05], at_step=3),
        fires("from a perfect evaluation", loss=[1.0, 0.9, 0.8, 0.7, 0.6], eval_loss=[1.0, 0.0, 0.1, 0.2, 0.3], at_step=3),
        fires("a wide gap is noted", loss=[1.0, 0.5], eval_loss=[1.2, 2.6], at_step=1, severity=Severity.INFO),
        fires("a gap the user cares about", loss=[1.0, 0.5], eval_loss=[1.2, 1.6], options={"gap": 1.0}, at_step=1,
              severity=Severity.WARNING),
        quiet("flat at its minimum", loss=[1.0, 0.9, 0.8, 0.7], eval_loss=[1.0, 0.9, 0.905, 0.9]),
        quiet("both rise: that is divergence", loss=[1.0, 0.9, 1.5, 2.0, 3.0], eval_loss=[1.0, 0.9, 1.5, 2.0, 3.0]),
        quiet("one noisy evaluation", loss=[1.0, 0.9, 0.8, 0.7], eval_loss=[1.0, 0.9, 1.0, 0.88]),
    )  # fmt: skip

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the last two evaluations with the best, and the training loss with what it was."""
        if not isinstance(now, Metrics) or not now.is_finite("eval_loss"):
            return None
        value = now.values["eval_loss"]
        evals = past.last("eval_loss")
        if evals and len(evals) >= 2 and self._turned_up(value, evals) and _is_falling(past):
            best = min(evals)
            above = f"{value / best - 1:.0%}" if best > 0 else f"{value - best:.4g}"
            because = f"evaluation loss is {value:.4g}, {above} above its best {best:.4g}"
            return self.incident(now, because, best=best, eval_loss=value)
        train = now.get("loss") if now.is_finite("loss") else past.latest("loss")
        if train is not None and value - train > self.gap:
            severity = Severity.WARNING if "gap" in self.given else Severity.INFO
            because = f"evaluation loss {value:.4g} is {value - train:.4g} above the training loss {train:.4g}"
            return self.incident(now, because, severity=severity, gap=value - train)
        return None

    def _turned_up(self, value: float, evals: list[float]) -> bool:
        best = min(evals)
        limit = best + self.rise * abs(best)
        return value > evals[-1] > limit and value > limit


def _is_falling(past: History) -> bool:
    """Say whether the training loss is lower now than it was; a rising one is another rule's business."""
    losses = past.last("loss")
    third = len(losses) // 3
    return third > 0 and median(losses[-third:]) < median(losses[:third])

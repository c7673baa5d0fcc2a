"""The rule `gradient-not-finite`."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

from ..core.action import Ladder
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal
from .loss_not_finite import LossNotFinite, check_nonfinite_options, nonfinite_ladder, nonfinite_severity

FINDING_THE_SCALE = 10
"""Overflows in a row that are usual before the first finite gradient of a half-precision run."""


@dataclass(frozen=True, kw_only=True)
class GradientNotFinite(Detector):
    """The gradient norm is NaN or infinite.

    ## Why it matters
    Clipping turns one NaN element into NaN everywhere, so the update must not be applied. A log that hides the NaN
    loss still shows it here. A norm that was finite until now and a loss that still is point at the backward pass.

    ## What to try
    1. Nothing where it happens now and then with `fp16`: the loss scaler skips the step.
    2. Train in `bf16` instead of `fp16`.
    3. Look at the batch of that step, and for divisions and logarithms in a loss of your own.

    ## False alarms
    A loss scaler overflows on purpose while it looks for its scale: the overflows before the first finite norm, and
    those while `loss_scale` is known to be above 1, are only noted.

    ## References
    - PyTorch automatic mixed precision, GradScaler
    - ZClip, arXiv:2504.02507: the published code is disabled for ever by one NaN norm
    """

    patience: int = 3
    """Non-finite steps in a row that start the ladder."""
    stop_after: int = 10
    """Non-finite steps in a row that stop the run, whatever was tried."""
    action: str = "skip"
    """`skip` the update; `warn` lets it through; `rollback` returns at once; `raise` stops at once."""

    failure = FailureType.NAN_LOSS
    fine = "transient_nonfinite_grad"
    severity = Severity.WARNING
    metric = "grad_norm"
    remedy = LossNotFinite.remedy
    examples = (
        fires("one NaN norm is a warning", grad_norm=[1.0, 1.1, nan], at_step=2, severity=Severity.WARNING),
        fires("a scaler that looks for its scale is only noted", grad_norm=[inf, inf, 1.0], at_step=0,
              severity=Severity.INFO),
        quiet("large norms are numbers", grad_norm=[1.0, 4e6, 1.0]),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        super().__post_init__()
        check_nonfinite_options(self, self.patience, self.stop_after, self.action)

    def ladder(self, incident: Incident) -> Ladder:
        """Follow the user's `action`; the run is stopped only after `stop_after` steps in a row."""
        return nonfinite_ladder(self.action, self.stop_after, incident)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire on every non-finite norm; note it only where a loss scaler explains it."""
        if not isinstance(now, Metrics) or "grad_norm" not in now.values or now.is_finite("grad_norm"):
            return None
        in_a_row = past.nonfinite_run("grad_norm")
        loss_is_finite = now.is_finite("loss") or "loss" not in now.values
        because = f"gradient norm is {now.values['grad_norm']}, {in_a_row} in a row"
        onset = max(0, now.step - in_a_row + 1)
        if loss_is_finite and self._is_routine(now, past, in_a_row):
            because += ", usual while a loss scaler looks for its scale"
            return self.incident(now, because, severity=Severity.INFO, onset_step=onset, in_a_row=in_a_row)
        severity, stage = nonfinite_severity(self.action, self.patience, self.stop_after, in_a_row)
        fine = "nan_loss" if severity is Severity.ERROR else self.fine
        return self.incident(
            now, because, severity=severity, stage=stage, fine=fine, onset_step=onset, in_a_row=in_a_row
        )

    def _is_routine(self, now: Metrics, past: History, in_a_row: int) -> bool:
        if "action" in self.given and self.action in ("rollback", "raise"):
            return False
        scale = now.get("loss_scale") or past.latest("loss_scale")
        if scale is not None:
            return scale > 1.0 and in_a_row <= FINDING_THE_SCALE
        return past.finite_count("grad_norm") == 0 and in_a_row <= FINDING_THE_SCALE

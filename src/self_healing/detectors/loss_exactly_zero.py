"""The rule `loss-exactly-zero`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.alert import Alert
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal

POLICY_METRICS = ("reward", "reward_std", "kl", "rewards/mean")
"""Where these are logged the loss is a policy-gradient surrogate, whose mean is zero on purpose."""


@dataclass(frozen=True, kw_only=True)
class LossExactlyZero(Detector):
    """The loss is exactly 0.0 step after step.

    ## Why it matters
    Either every label is masked and nothing is learned, or a NaN is being hidden by a log filter. Real losses
    come close to zero, but not to the last bit, several times in a row.

    ## What to try
    1. Set `logging_nan_inf_filter=False`: NaN losses may be hidden behind the zeros.
    2. Check that labels are not all masked (-100), as by a response template that is never found.
    3. Train in `bf16` instead of `fp16`.

    ## False alarms
    On-policy reinforcement learning logs a loss of 0.0 on purpose: the rule is silent where a reward is logged.

    ## References
    - huggingface/transformers, `logging_nan_inf_filter`: how a NaN becomes a logged 0.0
    """

    patience: int = 5
    """Zero losses in a row that are reported."""
    stop_after: int = 200
    """Zero losses in a row, with gradients that are zero too, after which the run is stopped."""

    failure = FailureType.DATA_ERROR
    fine = "zero_loss"
    severity = Severity.WARNING
    remedy = (rung(Alert(), success=0.1), rung(StopRun(), success=1.0))
    examples = (
        fires("all labels masked", loss=[0.0] * 6, grad_norm=[0.0] * 6, at_step=4),
        quiet("near zero is a number like others", loss=[1e-9] * 20),
        quiet("policy gradients", loss=[0.0] * 20, reward=[0.1] * 20),
        quiet("one rounded value", loss=[0.1, 0.0, 0.1, 0.0, 0.2]),
    )

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        super().__post_init__()
        if not self.patience <= self.stop_after <= 256:  # what the history remembers
            self.refuse("stop_after", "must be between patience and 256")

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire where the loss has been zero `patience` times in a row."""
        if now.get("loss") != 0.0 or any(past.finite_count(metric) for metric in POLICY_METRICS):
            return None
        zeros = 1 + _zeros_at_end(past.last("loss", self.stop_after - 1))
        if zeros < self.patience:
            return None
        norms = past.last("grad_norm", self.stop_after)
        nothing_learned = zeros >= self.stop_after and bool(norms) and not any(norms)
        return self.incident(
            now,
            f"loss is exactly 0.0, {zeros} times in a row" + (", and so are the gradients" if nothing_learned else ""),
            severity=Severity.ERROR if nothing_learned else Severity.WARNING,
            zeros=zeros,
        )


def _zeros_at_end(values: list[float]) -> int:
    count = 0
    for value in reversed(values):
        if value != 0.0:
            break
        count += 1
    return count

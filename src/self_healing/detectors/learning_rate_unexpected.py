"""The rule `learning-rate-unexpected`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal


@dataclass(frozen=True, kw_only=True)
class LearningRateUnexpected(Detector):
    """The applied learning rate differs from the schedule, or is zero too early.

    ## Why it matters
    A resumed run with a fresh schedule, a callback that writes the optimizer's rate, or a schedule that ended
    too soon train at the wrong rate without any error.

    ## What to try
    1. Resume with the checkpoint's own scheduler, and with the same `max_steps` or `num_train_epochs`.
    2. Look for a callback, or code of your own, that sets `param_group['lr']`.

    ## False alarms
    A schedule that means to reach zero before the end (a fixed number of steps in a longer run). Ignore the rule there.

    ## References
    - huggingface/transformers: a checkpoint without its scheduler file silently restarts the schedule
    """

    tolerance: float = 0.01
    """Relative difference from the expected rate that is still taken for rounding."""
    zeros: int = 3
    """Observations in a row at rate zero before nine tenths of the run that are reported."""

    failure = FailureType.CONFIG_ERROR
    fine = "learning_rate_unexpected"
    severity = Severity.WARNING
    remedy = (rung(Alert(), success=0.1),)
    examples = (
        fires("the schedule says otherwise", learning_rate=[1e-4, 1e-4, 5e-5],
              expected_learning_rate=[1e-4, 1e-4, 1e-4], at_step=2),
        fires("zero half-way", learning_rate=[1e-4] * 5 + [0.0] * 3, facts={"max_steps": 100}, at_step=7),
        fires("negative", learning_rate=[1e-4, -1e-4], at_step=1),
        quiet("zero during the first warm-up step", learning_rate=[0.0, 1e-5, 2e-5], facts={"max_steps": 100}),
        quiet("zero at the end", learning_rate=[1e-4] * 95 + [0.0] * 5, facts={"max_steps": 100}),
        quiet("as scheduled", learning_rate=[1e-4] * 5, expected_learning_rate=[1e-4] * 5),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Refuse options that make no sense."""
        super().__post_init__()
        if self.tolerance >= 1:
            self.refuse("tolerance", "must be less than 1")

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare with the schedule where the adapter knows it, else look for what no schedule does."""
        if not isinstance(now, Metrics) or (rate := now.get("learning_rate")) is None:
            return None
        if not rate >= 0:
            return self.incident(now, f"learning rate is {rate}", learning_rate=rate)
        expected = now.get("expected_learning_rate")
        if expected is not None and abs(rate - expected) > self.tolerance * max(abs(expected), abs(rate)):
            because = f"learning rate is {rate:.4g}, the schedule says {expected:.4g}"
            return self.incident(now, because, learning_rate=rate, expected=expected)
        return self._zero_too_early(now, past) if rate == 0.0 else None

    def _zero_too_early(self, now: Metrics, past: History) -> Incident | None:
        max_steps = past.facts.get("max_steps")
        if isinstance(max_steps, str) or not max_steps or now.step >= 0.9 * max_steps:
            return None
        before = past.last("learning_rate", self.zeros - 1)
        was_positive = any(past.last("learning_rate"))
        if len(before) < self.zeros - 1 or any(before) or not was_positive:
            return None
        return self.incident(now, f"learning rate is zero at step {now.step} of {max_steps:g}", learning_rate=0.0)

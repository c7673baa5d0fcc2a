"""The rule `policy-gradient-zero`: rewards differ, and still there is no gradient."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Statistic
from ._run_health import IDLE, REWARD_STD, report

MOSTLY_IDLE = 0.8
"""Share of groups without a signal above which no gradient is to be expected."""


@dataclass(frozen=True, kw_only=True)
class PolicyGradientZero(Detector):
    """Rewards differ within the groups, and the gradient norm is zero all the same.

    ## Why it matters
    The signal does not reach the weights: no parameter is trainable, the adapter is not attached, every completion is
    masked (`mask_truncated_completions` with completions that are all cut), or the loss is multiplied by nothing.

    ## What is normal
    0.001 to 1.0; 0.0 now and then, where the rewards of all groups of a step are equal. Norms that are large for this run
    are `gradient-explosion`'s and `gradient-norm-growth`'s matter, which compare with the run's own history.

    ## What to try
    1. `model.print_trainable_parameters()`, or count parameters with `requires_grad`.
    2. `mask_truncated_completions` off, or a longer `max_completion_length`.
    3. `epsilon` and `beta` in the configuration: neither may silence the loss.

    ## False alarms
    Every one of `window` norms must be below `below`, the rewards must differ, and most groups must have a signal.

    ## References
    Axolotl, Training stability and debugging, for norms of GRPO runs.
    """

    window: int = 20
    """Norms in a row that must be zero."""
    below: float = 1e-9
    """Norm that counts as zero."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_no_gradient"
    severity = Severity.WARNING
    paced_by = "grad_norm"
    remedy = (
        rung(
            Alert(
                about="policy-gradient-zero",
                advice="Count the parameters with requires_grad, and check mask_truncated_completions and "
                "max_completion_length: masked completions have no gradient.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("rewards differ", at_step=19, reward_std=[0.4] * 30, grad_norm=[0.0] * 30),
        quiet("rewards do not differ", reward_std=[0.0] * 30, grad_norm=[0.0] * 30),
        quiet("zero now and then", reward_std=[0.4] * 60, grad_norm=[0.0, 0.0, 0.2] * 20),
        quiet("a supervised run", loss=[1.0] * 30, grad_norm=[0.0] * 30),
    )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Whether rewards differ; norms are few where they are zero, and are looked up."""
        return (REWARD_STD, IDLE)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look at the norms where rewards are known to differ."""
        norm = now.get("grad_norm")
        if norm is None or norm > self.below:
            return None
        spread, idle = past.stat(REWARD_STD), past.stat(IDLE)
        if not spread.ready or spread.mean <= 0.0:
            return None
        before = past.last("grad_norm", self.window - 1)
        if len(before) < self.window - 1 or max(before, default=0.0) > self.below:
            return None
        if idle.ready and idle.mean > MOSTLY_IDLE:
            return None
        return report(
            self, now, "grad_norm",
            f"the gradient norm was 0 in each of the last {self.window} observations although rewards differ by "
            f"{spread.mean:.3g} within a group",
            onset_step=past.step_ago("grad_norm", self.window - 1),
        )  # fmt: skip

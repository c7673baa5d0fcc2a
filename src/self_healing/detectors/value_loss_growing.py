"""The rule `value-loss-growing`: the value function loses track of the rewards."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Course, Statistic
from ._run_health import above, onset, report

VALUE_LOSS = "loss/value_avg"


@dataclass(frozen=True, kw_only=True)
class ValueLossGrowing(Detector):
    """The loss of a PPO run's value function is several times what it was.

    ## Why it matters
    Advantages are measured against what the value function expects. Once it is wrong they are noise, however good the
    rewards are, and the policy follows the noise.

    ## What is normal
    A fall in the first updates, then a level that goes with the square of the rewards' spread. It may rise for a while
    when the policy finds something new.

    ## What to try
    1. A lower `learning_rate`.
    2. `cliprange_value` 0.2 and `vf_coef` 0.1.
    3. Rewards scaled or whitened (`whiten_rewards=True`).
    4. A value model started from the reward model.

    ## False alarms
    The median over `window` observations must be `times` the lowest mean so far and twice the first one. It only warns.

    ## References
    Schulman et al. (2017), Proximal policy optimization algorithms, arXiv 1707.06347; Huang et al. (2024), The N+
    implementation details of RLHF with PPO, arXiv 2403.17031.
    """

    window: int = 16
    """Observations whose median is judged."""
    times: float = 5.0
    """Multiple of the lowest mean so far that is too high."""

    failure = FailureType.RL_COLLAPSE
    fine = "unstable"
    severity = Severity.WARNING
    reads = (VALUE_LOSS,)
    paced_by = VALUE_LOSS
    remedy = (
        rung(
            Alert(
                about="value-loss-growing",
                advice="Lower the learning_rate, check cliprange_value and vf_coef (TRL: PPOConfig), and whiten_rewards.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("ten times what it was", at_step=57, loss__value_avg=[0.3] * 50 + [3.0] * 30),
        quiet("falls", loss__value_avg=[2.0 * 0.97**i + 0.1 for i in range(200)]),
        quiet("noise", loss__value_avg=[0.3 * math.exp(0.6 * math.sin(i * i)) for i in range(200)]),
        quiet("a spike", loss__value_avg=[0.3] * 50 + [30.0] * 2 + [0.3] * 50),
    )

    @cached_property
    def _course(self) -> Course:
        return Course(VALUE_LOSS, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The loss of the value function."""
        return (self._course,)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest median with the lowest mean and the first."""
        if now.get(VALUE_LOSS) is None:
            return None
        course = past.stat(self._course)
        limit = max(self.times * course.lowest, 2.0 * course.first)
        if not course.has_moved_on or course.median <= limit:
            return None
        return report(
            self, now, VALUE_LOSS,
            f"the value loss is {course.median:.3g} (median of {self.window} observations) and was {course.lowest:.3g} at "
            "its lowest",
            onset_step=onset(past, VALUE_LOSS, above(limit)), level=course.median, lowest=course.lowest,
        )  # fmt: skip

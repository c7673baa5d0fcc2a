"""The rule `length-collapse`: completions shrink to next to nothing."""

from __future__ import annotations

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
from ._run_health import REWARD, REWARD_STD, below, has_improved, is_policy_run, onset, report

LENGTH = "completions/mean_length"


@dataclass(frozen=True, kw_only=True)
class LengthCollapse(Detector):
    """Completions have shrunk to a small part of their first length, and the reward has not risen.

    ## Why it matters
    The policy ends at once: an empty answer is safe where wrong ones are punished, or where long ones are cut off. Nothing
    can be learned from completions without content.

    ## What is normal
    Some shortening, as a model learns to come to the point: the reward rises meanwhile.

    ## What to try
    1. Read completions.
    2. No penalty for length that an empty answer escapes; a small reward for a well-formed one.
    3. A KL penalty (`beta`) and a lower `learning_rate`.
    4. Check that the end-of-text token is not in the prompt.

    ## False alarms
    The mean over `window` observations must be below `share` of the first one while the reward is not clearly above its
    first level.

    ## References
    Axolotl, Training stability and debugging: the mean length should be what the task needs.
    """

    window: int = 16
    """Observations that are averaged."""
    share: float = 0.25
    """Share of the first mean length that is too short."""

    failure = FailureType.RL_COLLAPSE
    fine = "grpo_collapse"
    severity = Severity.WARNING
    reads = (LENGTH,)
    paced_by = LENGTH
    remedy = (
        rung(
            Alert(
                about="length-collapse",
                advice="Read some completions; take penalties for length out of the reward, add a KL penalty (TRL: beta; "
                "Axolotl: trl.beta) or lower the learning_rate.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("ends at once", at_step=52, completions__mean_length=[200.0] * 40 + [3.0] * 30, reward=[0.2] * 70),
        quiet(
            "comes to the point",
            completions__mean_length=[200.0 * 0.97**i for i in range(100)],
            reward=[0.01 * i for i in range(100)],
        ),
        quiet("a third shorter", completions__mean_length=[200.0] * 40 + [130.0] * 40, reward=[0.2] * 80),
    )

    @cached_property
    def _length(self) -> Course:
        return Course(LENGTH, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The lengths, and what the reward does."""
        return (self._length, REWARD, REWARD_STD)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the first one."""
        if now.get(LENGTH) is None or not is_policy_run(past):
            return None
        length = past.stat(self._length)
        if not length.has_moved_on or length.mean >= self.share * length.first or has_improved(past):
            return None
        half = 0.5 * (length.first + length.mean)
        return report(
            self, now, LENGTH,
            f"completions are {length.mean:.3g} tokens long on average over {self.window} observations and began at "
            f"{length.first:.4g}; the reward has not risen",
            onset_step=onset(past, LENGTH, below(half)), level=length.mean, first=length.first,
        )  # fmt: skip

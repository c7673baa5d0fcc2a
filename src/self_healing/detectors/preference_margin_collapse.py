"""The rule `preference-margin-collapse`: what was preferred no longer is."""

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
from ._run_health import below, onset, report, reported

_UP = tuple(0.6 * (1 - math.exp(-i / 30)) + 0.05 * math.sin(i * i) for i in range(120))


@dataclass(frozen=True, kw_only=True)
class PreferenceMarginCollapse(Detector):
    """The margin between chosen and rejected answers had grown and has lost most of that again.

    ## Why it matters
    The margin is what preference training is for. When it goes, the policy has jumped: a rate that is too high, a batch of
    swapped or corrupted pairs, or numbers that overflowed.

    ## What is normal
    Growth that slows down. Margins of single batches vary a lot and may be negative.

    ## What to try
    1. Go back to the checkpoint before the fall with half the `learning_rate`.
    2. Look at the pairs of the steps before.
    3. A higher `beta`, which keeps the policy closer to the reference.
    4. `label_smoothing` 0.1 for noisy pairs.

    ## False alarms
    Means over `window` observations are compared. The best must have been above `least` and clearly above the noise, and
    less than `left` of it may be left. It only warns.

    ## References
    Rafailov et al. (2023), Direct preference optimization, arXiv 2305.18290, for the margin of implicit rewards.
    """

    window: int = 24
    """Observations that are averaged."""
    least: float = 0.1
    """Best mean margin below which there was nothing to lose."""
    left: float = 0.3
    """Share of the best mean below which it counts as lost."""
    certain: float = 6.0
    """Standard errors of the newest mean that must have been lost."""

    failure = FailureType.DPO_PLATEAU
    fine = "dpo_instability"
    severity = Severity.WARNING
    reads = ("rewards/margins", "margin")
    paced_by = "rewards/margins"
    remedy = (
        rung(
            Alert(
                about="preference-margin-collapse",
                advice="Go back to the checkpoint before the fall with half the learning_rate, or raise beta (Axolotl: "
                "rl_beta).",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("gone", at_step=135, rewards__margins=(*_UP, *[-0.1] * 40)),
        fires("of a reward model", at_step=136, margin=(*_UP, *[0.0] * 40)),
        quiet("grows", rewards__margins=_UP),
        quiet("noise around little", rewards__margins=[0.05 * math.sin(i * i) for i in range(200)]),
        quiet("bad batches", rewards__margins=(*_UP, -1.0, -1.0, *_UP[80:])),
    )

    @cached_property
    def _courses(self) -> tuple[Course, ...]:
        return tuple(Course(name, window=self.window) for name in self.reads)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The margins."""
        return self._courses

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with the best."""
        found = reported(now, self._courses, past)
        if found is None or not found[1].has_moved_on:
            return None
        metric, course = found
        best, lost = course.highest, course.highest - course.mean
        if best < self.least or course.mean >= self.left * best or lost <= self.certain * course.change_error:
            return None
        half = 0.5 * best
        return report(
            self, now, metric,
            f"the mean margin was {best:.3g} at its best and is {course.mean:.3g} now (over {self.window} observations)",
            onset_step=onset(past, metric, below(half)), best=best, level=course.mean,
        )  # fmt: skip

"""The rule `odds-ratio-falling`: an ORPO run prefers rejected answers."""

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
from ..core.statistics import Course, CourseTracker, Statistic
from ._run_health import is_after, onset, report

LOG_ODDS, ODDS_LOSS = "log_odds_chosen", "odds_ratio_loss"

CERTAIN = 4.0
"""Standard errors that both the rise and the fall must have."""

_UP = tuple(0.8 * (1 - math.exp(-i / 30)) + 0.1 * math.sin(i * i) for i in range(120))


@dataclass(frozen=True, kw_only=True)
class OddsRatioFalling(Detector):
    """The odds of chosen over rejected answers in an ORPO run have fallen, or stay below even.

    ## Why it matters
    The likelihood term makes the loss fall whatever happens to the preference, so the loss does not show it: the model
    learns to write both kinds of answers, and the rejected ones better.

    ## What is normal
    `log_odds_chosen` rises from about 0, often by no more than some tenths, and `log_odds_ratio` goes from -0.69 towards 0.
    Margins of a few thousandths are normal, because log-probabilities are means per token.

    ## What to try
    1. A larger `beta`, the weight of the odds ratio (Axolotl: `orpo_alpha`): 0.1 to 0.5.
    2. Look for swapped columns where the odds were below even from the start.
    3. A lower `learning_rate` where they fell.

    ## False alarms
    Means over `window` observations are compared, after `after_step` and the warm-up: the log-odds must be below zero by
    three standard errors and no higher than at the start, or have lost `lost` of a clear rise.

    ## References
    Hong et al. (2024), ORPO: monolithic preference optimization without reference model, arXiv 2403.07691.
    """

    window: int = 24
    """Observations that are averaged."""
    after_step: int = 100
    """Steps that are never judged; the warm-up, where known, is added."""
    lost: float = 0.7
    """Share of the rise that must be gone."""

    failure = FailureType.DPO_PLATEAU
    fine = "dpo_instability"
    severity = Severity.WARNING
    reads = (LOG_ODDS, ODDS_LOSS)
    paced_by = LOG_ODDS
    remedy = (
        rung(
            Alert(
                about="odds-ratio-falling",
                advice="Raise beta, the weight of the odds ratio (Axolotl: orpo_alpha), and look for swapped columns.",
            ),
            success=0.1,
        ),
    )
    examples = (
        fires("prefers the rejected ones", at_step=100, log_odds_chosen=[-0.3 - 0.001 * i for i in range(120)]),
        fires("had learned it", at_step=131, log_odds_chosen=(*_UP, *[0.0] * 30)),
        fires("by the name other trainers use", at_step=131, odds_ratio_loss=[0.9 - 0.6 * x for x in _UP] + [0.9] * 30),
        quiet("learns it", log_odds_chosen=_UP),
        quiet("small, and above even", log_odds_chosen=[0.02 + 0.01 * math.sin(i * i) for i in range(200)]),
    )

    @cached_property
    def _odds(self) -> Course:
        return Course(LOG_ODDS, window=self.window)

    @cached_property
    def _loss(self) -> Course:
        return Course(ODDS_LOSS, window=self.window)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The log-odds, and the loss by the name other trainers give it."""
        return (self._odds, self._loss)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Compare the newest mean with zero, the best and the first."""
        is_loss = now.get(LOG_ODDS) is None
        if is_loss and now.get(ODDS_LOSS) is None:
            return None
        course = past.stat(self._loss if is_loss else self._odds)
        if not course.has_moved_on or not is_after(now, past, self.after_step):
            return None
        because = self._lost(course, is_loss=is_loss)
        if not because and not is_loss and course.mean < -3.0 * course.error and course.mean <= course.first:
            because = f"the log-odds of chosen answers are {course.mean:.3g}: rejected ones are preferred"
        if not because:
            return None
        metric = ODDS_LOSS if is_loss else LOG_ODDS
        middle = 0.5 * (course.mean + (course.lowest if is_loss else course.highest))
        bad = onset(past, metric, lambda value: (value > middle) is is_loss)
        return report(self, now, metric, because, onset_step=bad, level=course.mean)

    def _lost(self, course: CourseTracker, *, is_loss: bool) -> str:
        """Return what to say where most of a clear rise is gone."""
        best = course.lowest if is_loss else course.highest
        sign = -1.0 if is_loss else 1.0
        gained, gone = sign * (best - course.first), sign * (best - course.mean)
        if min(gained, gone) <= CERTAIN * course.change_error or gone <= self.lost * gained or gained <= 0.05:
            return ""
        name = ODDS_LOSS if is_loss else LOG_ODDS
        return f"{name} was {best:.3g} at its best and is {course.mean:.3g} now (mean of {self.window} observations)"

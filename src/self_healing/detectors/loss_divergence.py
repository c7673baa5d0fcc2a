"""The rule `loss-divergence`: the loss has left its level upwards and stays away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.rewarm_learning_rate import RewarmLearningRate
from ..actions.roll_back import RollBack
from ..actions.skip_batches import SkipBatches
from ..actions.stop_run import StopRun
from ..actions.tighten_clipping import TightenClipping
from ..actions.wait import Wait
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Baseline, BaselineTracker, Cusum, Rise, Schedule, Statistic, Streak

FIRST_JUDGED = 16
"""Finite losses there must be before the rule says anything."""

PLANNED = 64
"""Observations after a jump of the learning rate, or after the end of its climb, in which a higher loss is expected."""

_CALM = tuple(2.5 + 0.1 * math.sin(i * i) for i in range(200))


@dataclass(frozen=True, kw_only=True)
class LossDivergence(Detector):
    """The loss has risen clearly above its level and does not come back.

    ## Why it matters
    A diverged run rarely returns to where it was, and every further step is lost. The sooner it is seen, the less has
    to be done again: a collapse shows after 6 observations, a shift of three standard deviations after about 10, a
    slow ramp of 4 % of a standard deviation per step after about 110.

    ## What to try
    1. Go back to a checkpoint from before the rise and skip the batches since.
    2. Lower `learning_rate` 2 to 3 times, or warm up for longer.
    3. Clip gradients (`max_grad_norm=1.0`).

    ## False alarms
    Two tests, a clipped CUSUM for jumps and recent-against-best for ramps; neither can be raised by one outlier.
    None in 15 million healthy observations of five kinds of noise, flat and on falling curves (`bench/detectors.py`).
    Changes below `relative` of the level are a warning only. So is a rise right after the learning rate was raised,
    unless half of all progress is lost. Runs that report a reward are left to their own rules: there the loss is no
    measure of quality. Changing data (a harder part of the corpus) can look like divergence. `rising` losses in a row were
    measured to miss almost every divergence: that count is only noted unless you set it.

    ## References
    Page (1954), Continuous inspection schemes, for the CUSUM. PaLM (arXiv 2204.02311) section 5.1, for loss spikes
    handled by going back and skipping batches.
    """

    kappa: float = 1.0
    """Excess over the level, in standard deviations, that every observation is forgiven."""
    limit: float = 17.5
    """Sum of excesses that raises the alarm."""
    rise_limit: float = 4.0
    """Rise of the recent level over the best one, in standard deviations, that raises the alarm."""
    relative: float = 0.05
    """Rise, as a share of the level, from which it is an error and not a warning."""
    rising: int = 50
    """Losses in a row, each higher than the last; acts only when set."""

    failure = FailureType.DIVERGENCE
    fine = "divergence"
    severity = Severity.ERROR
    metric = "loss"
    remedy = (
        Rung((Wait(),), success=0.3),
        Rung((RollBack(), SkipBatches()), success=0.6, repeats=3),
        # Where the rate is known to be too high its own cause comes first; here it may not be the rate at all.
        Rung((RollBack(depth=1), RewarmLearningRate()), success=0.3),
        Rung((RollBack(depth=2), RewarmLearningRate(), TightenClipping(), SkipBatches()), success=0.4),
        Rung((StopRun(),), success=0.0),
    )
    examples = (
        fires(
            "a collapse is seen after six observations", at_step=205, severity=Severity.ERROR, loss=_CALM + (9.0,) * 20
        ),
        fires(
            "fifty rises in a row are worth a note",
            at_step=50,
            severity=Severity.INFO,
            loss=tuple(1.0 + 1e-5 * i for i in range(60)),
        ),
        fires(
            "three rises in a row are an error for a user who says so",
            at_step=3,
            severity=Severity.ERROR,
            options={"rising": 3},
            loss=(2.0, 2.1, 2.2, 2.3),
        ),
        quiet("a spike of three steps passes", loss=_CALM + (9.0,) * 3 + _CALM),
        quiet("a falling loss that flattens", loss=tuple(2.5 + 8.0 * math.exp(-i / 40) for i in range(300))),
        quiet("the surrogate loss of a run with rewards", reward=[0.5] * 220, loss=_CALM + (9.0,) * 20),
    )

    @cached_property
    def _statistics(self) -> tuple[Baseline, Cusum, Rise, Streak, Schedule]:
        return (
            Baseline("loss"),
            Cusum("loss", kappa=self.kappa, limit=self.limit),
            Rise("loss", limit=self.rise_limit),
            Streak("loss"),
            Schedule("learning_rate"),
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The level of the loss, both tests, and what the learning rate is doing."""
        return self._statistics

    def check(self, now: Signal, past: History) -> Incident | None:
        """Report the stronger of the two tests, then the user's own threshold."""
        loss = now.get("loss")
        if loss is None or not math.isfinite(loss):
            return None
        by_count = self._check_streak(now, past)
        if by_count is not None and by_count.severity is Severity.ERROR:
            return by_count
        # With a reward in sight the loss is a policy surrogate, and rising is not getting worse.
        if past.finite_count("loss") <= FIRST_JUDGED or past.latest("reward") is not None:
            return by_count
        found = self._check_jump(now, past) or self._check_ramp(now, past)
        return found or by_count

    def _check_jump(self, now: Signal, past: History) -> Incident | None:
        baseline, cusum = past.stat(self._statistics[0]), past.stat(self._statistics[1])
        if not cusum.alarm:
            return None
        severity = self._severity(cusum.excess, baseline, past, cusum.onset)
        if severity is None:
            return None
        return self.incident(
            now,
            f"loss has been about {cusum.excess:.3g} above its level of {baseline.level:.3g} for {cusum.onset} "
            f"observations (CUSUM {cusum.cusum:.1f}, limit {self.limit:g})",
            severity=severity,
            excess=cusum.excess,
            onset_step=past.step_ago("loss", cusum.onset - 1),
            level=baseline.level,
            scale=baseline.scale,
            cusum=cusum.cusum,
            is_costly=cusum.excess >= self._much(baseline),
        )

    def _check_ramp(self, now: Signal, past: History) -> Incident | None:
        baseline, rise = past.stat(self._statistics[0]), past.stat(self._statistics[2])
        if not rise.alarm:
            return None
        severity = self._severity(rise.rise, baseline, past, rise.onset)
        if severity is None:
            return None
        return self.incident(
            now,
            f"the recent loss is {rise.rise:.3g} above its best level of {rise.best:.3g}, "
            f"{rise.excess * self.rise_limit:.1f} standard deviations, and has climbed for {rise.onset} observations",
            severity=severity,
            excess=rise.rise,
            onset_step=past.step_ago("loss", rise.onset),
            level=rise.best,
            scale=baseline.scale,
            is_costly=rise.rise >= self._much(baseline),
        )

    def _check_streak(self, now: Signal, past: History) -> Incident | None:
        streak = past.stat(self._statistics[3])
        act = "rising" in self.given
        if streak.rising < self.rising or not (act or streak.rising == self.rising):
            return None
        return self.incident(
            now,
            f"loss has risen {streak.rising} times in a row (rising = {self.rising})",
            severity=Severity.ERROR if act else Severity.INFO,
            onset_step=past.step_ago("loss", streak.rising),
        )

    def _severity(self, rise: float, baseline: BaselineTracker, past: History, age: int) -> Severity | None:
        """Judge a rise by its size and by what was planned."""
        size = max(abs(baseline.level), 0.2 * baseline.top)
        if rise < 0.2 * self.relative * size:
            return None
        if rise < self.relative * size:
            return Severity.WARNING
        schedule = past.stat(self._statistics[4])
        planned = min(schedule.since_jump, schedule.since_climb) <= age + PLANNED
        if planned and rise < self._much(baseline):
            return Severity.WARNING
        return Severity.ERROR

    def _much(self, baseline: BaselineTracker) -> float:
        """Return the rise from which half of all progress is lost, and a good part of the level."""
        size = max(abs(baseline.level), 0.2 * baseline.top)
        return max(0.3 * size, 0.5 * (baseline.top - baseline.level))

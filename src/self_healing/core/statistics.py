"""Statistics a rule can declare: each is O(1) or O(log n) per observation and knows its own state.

A rule lists declarations such as `Cusum("loss", kappa=1.0)` in its `needs`; `History` builds one tracker for
each distinct declaration and feeds it. `see` only gathers evidence, `admit` changes what is normal.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .baseline import Baseline, BaselineTracker, Sorted
from .tracker import Statistic, Tracked, Tracker, Trackers, TrackerT
from .trend import (
    Average,
    AverageTracker,
    Beginning,
    BeginningTracker,
    Course,
    CourseTracker,
    Schedule,
    ScheduleTracker,
    Streak,
    StreakTracker,
    Trend,
    TrendTracker,
)

__all__ = [
    "Average",
    "AverageTracker",
    "Baseline",
    "BaselineTracker",
    "Beginning",
    "BeginningTracker",
    "Course",
    "CourseTracker",
    "Cusum",
    "CusumTracker",
    "Outliers",
    "OutliersTracker",
    "Rise",
    "RiseTracker",
    "Schedule",
    "ScheduleTracker",
    "Statistic",
    "Streak",
    "StreakTracker",
    "Tracked",
    "Tracker",
    "TrackerT",
    "Trackers",
    "Trend",
    "TrendTracker",
]


@dataclass(frozen=True)
class Cusum(Tracked["CusumTracker"]):
    """Sum of the recent excess over normal: finds a level that has jumped and stays."""

    kappa: float = 1.0
    """Excess, in scales, that every observation is forgiven."""
    limit: float = 17.5
    clip: float = 4.0
    """Most that one observation may count for, so that no single outlier can raise the alarm."""
    log: bool = False

    @property
    def baseline(self) -> Baseline:
        """The baseline it is measured against."""
        return Baseline(self.metric, log=self.log)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The baseline runs first."""
        return (self.baseline,)

    def build(self, trackers: Trackers, /) -> CusumTracker:
        """Make the tracker."""
        return CusumTracker(self, trackers[self.baseline])


class CusumTracker(Tracker):
    """One-sided clipped CUSUM of the inflation-corrected z, with a vote of the newest observations."""

    saved = ("cusum", "onset", "votes", "newest")
    VOTERS = 0b1111111
    NEEDED = 6
    FEW = 2
    EARLY = 6.0

    def __init__(self, spec: Cusum, baseline: BaselineTracker) -> None:
        self.spec = spec
        self.baseline = baseline
        self.cusum = 0.0
        self.onset = 0
        """Observations since the sum last was zero, the newest included."""
        self.votes = 0
        """One bit for each of the newest observations: whether it added to the sum."""
        self.newest: deque[float] = deque(maxlen=7)
        """The newest excesses over the level, in the metric's unit (its logarithm if `log`)."""

    @property
    def alarm(self) -> bool:
        """Whether the sum is over the limit, has grown fast, and nearly all of the newest observations agree.

        The vote does not depend on the scale, so noise that merely becomes wider does not pass it. A sum that gains
        less than one scale per observation must come further: a slow swing of the level does that too. Early on
        only a large excess counts, because slow noise cannot be told from a change yet.
        """
        limit = self.spec.limit
        if self.cusum <= max(limit, min(self.onset, 1.5 * limit)):
            return False
        if (self.votes & self.VOTERS).bit_count() < self.NEEDED:
            return False
        return self.excess > self.EARLY * self.baseline.doubt * self.baseline.scale

    @property
    def excess(self) -> float:
        """Median of the newest excesses: how far from normal the metric is, whatever one outlier says."""
        return sorted(self.newest)[len(self.newest) // 2] if self.newest else 0.0

    def see(self, _x: float, /) -> None:
        """Add the newest reading of the baseline."""
        baseline = self.baseline
        if not baseline.ready or baseline.skipped:
            return
        spec = self.spec
        # Divided before it is clipped: a collapse is as plain in autocorrelated noise as in any other.
        z = (baseline.excess - baseline.drift) / (baseline.scale * baseline.inflation)
        self.newest.append(baseline.excess)
        gain = max(-spec.clip, min(spec.clip, z)) - spec.kappa
        total = self.cusum + gain
        self.votes = (self.votes << 1 | (gain > 0.0)) & 0xFFFF
        if total > 0.0:
            # Bounded, so that after a long excursion it does not take as long again to believe in the recovery.
            self.cusum = min(total, 2.0 * spec.limit)
            self.onset += 1
        else:
            self.cusum = 0.0
            self.onset = 0

    def pass_over(self) -> None:
        """Forget, unless several of the newest observations still add to the sum: then it is no passed spike."""
        if (self.votes & self.VOTERS).bit_count() <= self.FEW:
            self.forget_evidence()

    def forget_evidence(self) -> None:
        """Start the sum again from zero."""
        self.cusum = 0.0
        self.onset = 0
        self.votes = 0
        self.newest.clear()


@dataclass(frozen=True)
class Rise(Tracked["RiseTracker"]):
    """Recent level against the best one: finds a ramp too slow for any baseline to notice."""

    limit: float = 3.0
    """Rise, in inflation-corrected scales, that counts."""
    relative: float = 0.02
    """Rise, as a share of the best level, below which nothing counts."""
    fast: int = 16
    hold: int = 4
    """Observations in a row that must agree."""
    forget: int = 5000
    """Observations after which the best level has come up by one scale."""
    log: bool = False

    @property
    def baseline(self) -> Baseline:
        """The baseline that supplies level and scale."""
        return Baseline(self.metric, log=self.log)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The baseline runs first."""
        return (self.baseline,)

    def build(self, trackers: Trackers, /) -> RiseTracker:
        """Make the tracker."""
        return RiseTracker(self, trackers[self.baseline])


class RiseTracker(Tracker):
    """Median of the newest observations minus the lowest level so far, slowly forgotten."""

    saved = ("fast", "best", "known", "rise", "excess", "run", "onset", "peak", "swing")

    def __init__(self, spec: Rise, baseline: BaselineTracker) -> None:
        self.spec = spec
        self.baseline = baseline
        self.best = 0.0
        self.known = False
        self.rise = 0.0
        """Recent level above the best one, in the metric's unit (its logarithm if `log`)."""
        self.excess = 0.0
        """The rise divided by what would count: above 1 it speaks for an alarm."""
        self.run = 0
        self.onset = 0
        """Observations since the recent level last was half-way down to the best one."""
        self.peak = 0.0
        self.swing = 0.0
        """Largest rise that went away by itself: the run's own measure of what is harmless."""
        self._fast = Sorted()

    @property
    def fast(self) -> deque[float]:
        """The newest observations."""
        return self._fast.arrived

    @fast.setter
    def fast(self, values: deque[float]) -> None:
        self._fast.refill(values)

    @property
    def alarm(self) -> bool:
        """Whether the rise has counted for `hold` observations in a row."""
        return self.run >= self.spec.hold

    def see(self, _x: float, /) -> None:
        """Compare the recent level with the best one."""
        spec, baseline = self.spec, self.baseline
        if baseline.skipped:
            return
        self._fast.push(baseline.value, spec.fast)
        if not self.known or len(self._fast.arrived) < spec.fast:
            return
        self.rise = self._fast.quantile(0.5) - self.best
        noise = baseline.scale * baseline.inflation
        relative = 0.0 if spec.log else spec.relative * max(abs(self.best), 0.2 * baseline.top)
        needed = max(spec.limit * noise + 2.5 * baseline.drift, relative, 1.5 * self.swing)
        self.excess = self.rise / needed
        self.run = self.run + 1 if self.excess > 1.0 else 0
        self._follow_excursion(noise)

    def _follow_excursion(self, noise: float) -> None:
        """Learn how high the recent level climbs when it comes down again by itself."""
        self.peak = max(self.peak, self.rise)
        if self.rise < 0.5 * self.peak or self.rise < noise:
            if self.peak > noise:
                self.swing = max(self.swing * 0.99, self.peak)
            self.peak = max(self.rise, 0.0)
            self.onset = 0
        else:
            self.onset += 1

    def admit(self, _x: float, /) -> None:
        """Lower the best level to the baseline's, or forget a little of it."""
        baseline = self.baseline
        if not baseline.ready:
            return
        if not self.known:
            self.known = True
            self.best = baseline.level
        self.best = min(self.best + baseline.scale / self.spec.forget, baseline.level)

    def rebase(self, _values: list[float], /) -> None:
        """Take the level that lasted through an incident as the new best one."""
        if self.known:
            self.best = self.baseline.level

    def pass_over(self) -> None:
        """Keep everything: the recent level forgets a passed spike by itself."""

    def forget_evidence(self) -> None:
        """Ask for a full set of new observations."""
        self._fast.refill(deque())
        self.run = 0
        self.rise = self.excess = self.peak = 0.0
        self.onset = 0


@dataclass(frozen=True)
class Outliers(Tracked["OutliersTracker"]):
    """How many of the newest observations stand far above normal."""

    z: float = 6.0
    ratio: float = 2.0
    """Times the typical value that an outlier must also reach."""
    certain_ratio: float = 10.0
    """Times the typical value that makes an outlier at half the `z`."""
    memory: int = 8
    log: bool = True

    @property
    def baseline(self) -> Baseline:
        """The baseline it is measured against."""
        return Baseline(self.metric, log=self.log)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The baseline runs first."""
        return (self.baseline,)

    def build(self, trackers: Trackers, /) -> OutliersTracker:
        """Make the tracker."""
        return OutliersTracker(self, trackers[self.baseline])


class OutliersTracker(Tracker):
    """A bit for each of the newest observations: whether it was an outlier."""

    saved = ("bits", "outlier", "ratio")

    def __init__(self, spec: Outliers, baseline: BaselineTracker) -> None:
        self.spec = spec
        self.baseline = baseline
        self.bits = 0
        self.outlier = False
        """Whether the newest observation is one."""
        self.ratio = 0.0
        """Newest observation divided by the typical value."""

    @property
    def count(self) -> int:
        """Outliers among the newest `memory` observations."""
        return self.bits.bit_count()

    @property
    def in_a_row(self) -> int:
        """Outliers without another observation between them up to now; at most `memory`."""
        return (~self.bits & (self.bits + 1)).bit_length() - 1

    @property
    def onset(self) -> int:
        """Observations since the oldest outlier still remembered."""
        return max(0, self.bits.bit_length() - 1)

    def see(self, x: float, /) -> None:
        """Judge the newest observation."""
        spec, baseline = self.spec, self.baseline
        if not baseline.ready or baseline.skipped:
            return
        typical = baseline.typical
        self.ratio = x / typical if typical > 0.0 else 0.0
        z = baseline.z
        self.outlier = (z > spec.z and self.ratio > spec.ratio) or (
            z > 0.5 * spec.z and self.ratio > spec.certain_ratio
        )
        self.bits = (self.bits << 1 | self.outlier) & ((1 << spec.memory) - 1)

    def forget_evidence(self) -> None:
        """Forget the outliers."""
        self.bits = 0
        self.outlier = False

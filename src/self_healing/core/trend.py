"""Statistics that need no baseline: slopes, averages, streaks, beginnings and what the learning rate is doing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from .tracker import LARGEST, Tracked, Tracker, Trackers

MEAN_SECOND_DIFFERENCE = math.sqrt(6.0) * math.sqrt(2.0 / math.pi)
"""Mean size of x[t-1] - 2 x[t] + x[t+1] for independent normal x of unit variance."""


@dataclass(frozen=True)
class Trend(Tracked["TrendTracker"]):
    """Slope of a metric and its standard error over the means of the last blocks."""

    block: int = 16
    blocks: int = 32
    log: bool = False

    def build(self, _trackers: Trackers, /) -> TrendTracker:
        """Make the tracker."""
        return TrendTracker(self)


class TrendTracker(Tracker):
    """Least-squares line through block means, renewed whenever a block is full.

    Means of blocks, because neighbouring observations are alike and a standard error that took them for
    independent would be too small.
    """

    saved = ("count", "total", "filled", "means", "level", "slope", "error", "spread")

    def __init__(self, spec: Trend) -> None:
        self.spec = spec
        self.count = 0
        self.total = 0.0
        self.filled = 0
        self.level = 0.0
        """Mean of the blocks."""
        self.slope = 0.0
        """Change per observation."""
        self.error = 0.0
        """Standard error of the slope."""
        self.spread = 0.0
        """Standard deviation of the block means around the line."""
        self.means: deque[float] = deque(maxlen=spec.blocks)

    @property
    def ready(self) -> bool:
        """Whether the window is full."""
        return len(self.means) == self.spec.blocks

    @property
    def span(self) -> int:
        """Observations the line covers."""
        return len(self.means) * self.spec.block

    @property
    def change(self) -> float:
        """Change over the whole window, according to the line."""
        return self.slope * self.span

    @property
    def level_error(self) -> float:
        """Standard error of the mean of the blocks."""
        return self.spread / math.sqrt(len(self.means)) if self.means else 0.0

    def admit(self, x: float, /) -> None:
        """Add `x` to the open block."""
        if self.spec.log:
            if x <= 0.0:
                return
            x = math.log(x)
        self.count += 1
        self.total += max(-LARGEST, min(LARGEST, x))
        self.filled += 1
        if self.filled == self.spec.block:
            self.means.append(self.total / self.filled)
            self.total, self.filled = 0.0, 0
            self._fit()

    def _fit(self) -> None:
        means = self.means
        n = len(means)
        self.level = math.fsum(means) / n
        if n < 4:
            return
        middle = (n - 1) / 2.0
        sxx = n * (n * n - 1) / 12.0
        slope = math.fsum((i - middle) * m for i, m in enumerate(means)) / sxx
        left = math.fsum((m - self.level - slope * (i - middle)) ** 2 for i, m in enumerate(means))
        self.spread = math.sqrt(left / (n - 2))
        self.slope = slope / self.spec.block
        self.error = self.spread / math.sqrt(sxx) / self.spec.block


@dataclass(frozen=True)
class Streak(Tracked["StreakTracker"]):
    """How many observations in a row were higher than the one before."""

    def build(self, _trackers: Trackers, /) -> StreakTracker:
        """Make the tracker."""
        return StreakTracker()


class StreakTracker(Tracker):
    """Counter of rises in a row."""

    saved = ("rising", "previous")

    def __init__(self) -> None:
        self.rising = 0
        self.previous: float | None = None

    def see(self, x: float, /) -> None:
        """Compare with the observation before."""
        self.rising = self.rising + 1 if self.previous is not None and x > self.previous else 0
        self.previous = x

    def forget_evidence(self) -> None:
        """Count from zero again."""
        self.rising = 0


@dataclass(frozen=True)
class Beginning(Tracked["BeginningTracker"]):
    """The first values of a run, whatever was held back of them: what later ones are compared with while it is young."""

    length: int = 32

    def build(self, _trackers: Trackers, /) -> BeginningTracker:
        """Make the tracker."""
        return BeginningTracker(self)


class BeginningTracker(Tracker):
    """The first values, and how many there were altogether."""

    saved = ("values", "count")

    def __init__(self, spec: Beginning) -> None:
        self.spec = spec
        self.values: deque[float] = deque(maxlen=spec.length)
        self.count = 0

    @property
    def is_over(self) -> bool:
        """Whether the newest value is no longer one of the first."""
        return self.count > self.spec.length

    def see(self, x: float, /) -> None:
        """Take `x` in if it is one of the first."""
        self.count += 1
        if not self.is_over:
            self.values.append(max(-LARGEST, min(LARGEST, x)))


@dataclass(frozen=True)
class Course(Tracked["CourseTracker"]):
    """Where a metric began, where it is now, and the highest and lowest it has been, as means over a window.

    For metrics that are judged against their own beginning and by their level rather than by single values: rewards,
    entropies, margins, lengths. Nothing is held back from it.
    """

    window: int = 16

    def build(self, _trackers: Trackers, /) -> CourseTracker:
        """Make the tracker."""
        return CourseTracker(self)


class CourseTracker(Tracker):
    """The newest values, the means of full windows, and how much such means differ by themselves."""

    saved = (
        "values", "count", "known", "mean", "first", "first_spread", "highest", "lowest", "blocks", "turns", "wander",
    )  # fmt: skip
    ENOUGH = 4
    REMEMBERED = 16

    def __init__(self, spec: Course) -> None:
        self.values: deque[float] = deque(maxlen=spec.window)
        self.count = 0
        """Values seen."""
        self.known = False
        """Whether there was a full window, so that the means below say something."""
        self.mean = 0.0
        """Mean of the newest full window."""
        self.first = 0.0
        """Mean of the first window."""
        self.first_spread = 0.0
        """Standard deviation within the first window."""
        self.highest = 0.0
        """Highest mean of a window so far."""
        self.lowest = 0.0
        """Lowest mean of a window so far."""
        self.blocks: deque[float] = deque(maxlen=4)
        """Means of the last windows that share no value."""
        self.turns = 0
        self.wander = 0.0
        """How far one such mean usually is from the line through its neighbours, twice: no trend shows in that."""

    @property
    def ready(self) -> bool:
        """Whether the window is full."""
        return len(self.values) == self.values.maxlen

    @property
    def has_moved_on(self) -> bool:
        """Whether the newest window shares no value with the first one."""
        return self.ready and self.count >= 2 * len(self.values)

    @property
    def median(self) -> float:
        """Median of the newest window: what single outliers cannot move."""
        return sorted(self.values)[len(self.values) // 2] if self.values else 0.0

    @property
    def spread(self) -> float:
        """Standard deviation within the newest window."""
        return _deviation(self.values, self.mean)

    @property
    def error(self) -> float:
        """Standard error of the newest mean."""
        return self._error_of(self.spread)

    @property
    def change_error(self) -> float:
        """Standard error of the difference between the newest and the first mean."""
        return math.hypot(self._error_of(self.spread), self._error_of(self.first_spread))

    def _error_of(self, spread: float) -> float:
        """Return the standard error of a mean: neighbours may be alike, so what means really do counts as well."""
        independent = spread / math.sqrt(len(self.values)) if self.values else 0.0
        return max(independent, self.wander / MEAN_SECOND_DIFFERENCE) if self.turns >= self.ENOUGH else independent

    def see(self, x: float, /) -> None:
        """Take `x` into the window."""
        self.values.append(max(-LARGEST, min(LARGEST, x)))
        self.count += 1
        if not self.ready:
            return
        self.mean = sum(self.values) / len(self.values)
        if not self.known:
            self.known = True
            self.first = self.highest = self.lowest = self.mean
            self.first_spread = self.spread
        self.highest = max(self.highest, self.mean)
        self.lowest = min(self.lowest, self.mean)
        if self.count % len(self.values) == 0:
            self._learn_wandering()

    def _learn_wandering(self) -> None:
        """Learn how far means are apart, one window late: a change that has just begun must not hide itself."""
        self.blocks.append(self.mean)
        if len(self.blocks) < 4:
            return
        before, middle, after, _ = self.blocks
        step = abs(after - 2.0 * middle + before)
        self.turns += 1
        if self.turns > self.ENOUGH:
            step = min(step, 4.0 * self.wander)
        self.wander += (step - self.wander) / min(self.turns, self.REMEMBERED)

    def forget_evidence(self) -> None:
        """Ask for a full window of new values; where the metric began stays known."""
        self.values.clear()


def _deviation(values: deque[float], mean: float) -> float:
    if len(values) < 2:
        return 0.0
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


@dataclass(frozen=True)
class Average(Tracked["AverageTracker"]):
    """Plain mean of the last admitted values."""

    window: int = 50

    def build(self, _trackers: Trackers, /) -> AverageTracker:
        """Make the tracker."""
        return AverageTracker(self)


class AverageTracker(Tracker):
    """Mean of a short window."""

    saved = ("values", "mean")

    def __init__(self, spec: Average) -> None:
        self.values: deque[float] = deque(maxlen=spec.window)
        self.mean = 0.0

    @property
    def ready(self) -> bool:
        """Whether the window is full."""
        return len(self.values) == self.values.maxlen

    def admit(self, x: float, /) -> None:
        """Take `x` into the window."""
        self.values.append(max(-LARGEST, min(LARGEST, x)))
        self.mean = math.fsum(self.values) / len(self.values)


@dataclass(frozen=True)
class Schedule(Tracked["ScheduleTracker"]):
    """What the learning rate is doing: metrics change for good reason while it climbs or has just jumped."""

    climb: float = 0.001
    """Growth from one observation to the next that is a climb rather than rounding."""
    jump: float = 1.5
    """Factor from one observation to the next that is a jump rather than a climb."""

    def build(self, _trackers: Trackers, /) -> ScheduleTracker:
        """Make the tracker."""
        return ScheduleTracker(self)


class ScheduleTracker(Tracker):
    """Observations since the last jump and since the last climb."""

    saved = ("previous", "since_jump", "since_climb")
    LONG_AGO = 1_000_000

    def __init__(self, spec: Schedule) -> None:
        self.spec = spec
        self.previous: float | None = None
        self.since_jump = self.LONG_AGO
        self.since_climb = self.LONG_AGO

    def see(self, x: float, /) -> None:
        """Compare with the value before."""
        previous, self.previous = self.previous, x
        self.since_jump = min(self.since_jump + 1, self.LONG_AGO)
        self.since_climb = min(self.since_climb + 1, self.LONG_AGO)
        if previous is None or x <= previous * (1.0 + self.spec.climb):
            return
        self.since_climb = 0
        if previous > 0.0 and x > self.spec.jump * previous:
            self.since_jump = 0

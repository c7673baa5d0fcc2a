"""What is normal for a metric: its level, its scale and its memory, learned from admitted observations.

Every later test divides by these three numbers, so they are estimated in ways that the usual
complications of a training curve cannot upset:

* *level*: median of the last `window` admitted values. It lags behind a falling curve, which only
  makes one-sided upward tests more careful. Nothing is extrapolated: a curve that flattens must not
  look like one that rises.
* *gap*: the newest `gap` admitted values wait before they count, so the first observations of a
  change cannot hide it by moving the level or widening the scale.
* *scale*: upper half-width (90 % quantile minus median) of the residuals. The upper side alone,
  because skewed noise is wider there; minus the median, because the lag of the level shifts all
  residuals alike. Never below what second differences say, which no straight trend can move.
* *inflation*: how much farther the series wanders in `LAG` observations than in one, which is the
  factor by which sums of autocorrelated noise outgrow sums of independent noise.
* *drift*: how far the level of this run has climbed within its own window, now and then, without harm.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from .tracker import LARGEST, Tracked, Tracker, Trackers

LAG = 8
"""Distance at which the observations of usual training noise are as good as independent."""

NORMAL_Q90 = 1.2815515655446004
MEAN_ABS_TO_SIGMA = 1.2533141373155001
SECOND_DIFFERENCE = math.sqrt(6.0)
"""Standard deviation of x[t] - 2 x[t-k] + x[t-2k] for independent x of unit variance."""


SHORTEST = 8
"""Values that a level is taken from at least."""

TINY = 1e-12
"""Smallest scale: keeps a constant series from dividing by zero."""

ASSUMED_INFLATION = 2.5
"""What a series is taken for until it has shown its memory: an autoregression of about 0.7."""

UNDECIDED = 192
"""Observations over which that assumption fades."""

DEAD_ZONE = 0.15
"""Autocorrelation that independent noise shows by chance and that therefore counts as none."""

LARGEST_RHO = 0.9

CLIMBS, CLIMBS_WAITING = 64, 16
"""Changes of level that are remembered, and that wait first; one is taken every `LAG` observations."""


@dataclass(frozen=True)
class Baseline(Tracked["BaselineTracker"]):
    """Level, scale and memory of a metric; `log=True` for positive metrics that vary by factors."""

    window: int = 32
    gap: int = 8
    memory: int = 256
    log: bool = False

    def build(self, _trackers: Trackers, /) -> BaselineTracker:
        """Make the tracker."""
        return BaselineTracker(self)


class Sorted:
    """The last few values in order of arrival and in order of size."""

    __slots__ = ("arrived", "ordered")

    def __init__(self) -> None:
        self.arrived: deque[float] = deque()
        self.ordered: list[float] = []

    def push(self, x: float, longest: int) -> None:
        """Add `x` and drop the oldest values beyond `longest`."""
        arrived, ordered = self.arrived, self.ordered
        arrived.append(x)
        insort(ordered, x)
        while len(ordered) > longest:
            del ordered[bisect_left(ordered, arrived.popleft())]

    def quantile(self, q: float) -> float:
        """Return the interpolated quantile; the list must not be empty."""
        ordered = self.ordered
        last = len(ordered) - 1
        position = q * last
        low = int(position)
        value = ordered[low]
        return value + (position - low) * (ordered[low + 1] - value) if low < last else value

    def refill(self, values: deque[float]) -> None:
        """Start over from `values`."""
        self.arrived = values
        self.ordered = sorted(values)


class BaselineTracker(Tracker):
    """Level, scale and inflation of one metric, and the reading of the newest observation."""

    saved = (
        "count", "skipped", "waiting", "values", "residuals", "path", "wander_near", "wander_far", "wandered",
        "absorbed", "levels", "climbs_waiting", "climbs", "drift",
        "top", "value", "level", "scale", "inflation", "z", "excess",
    )  # fmt: skip

    def __init__(self, spec: Baseline) -> None:
        self.spec = spec
        self.count = 0
        """Observations admitted."""
        self.skipped = False
        """Whether the newest observation has no logarithm and says nothing."""
        self.level = 0.0
        self.scale = 0.0
        self.inflation = 1.0
        self.top = 0.0
        """Largest |level| there ever was: the size against which a change is judged worth a word."""
        self.value = 0.0
        self.z = 0.0
        """Newest observation's distance above the level, in scales."""
        self.excess = 0.0
        """The same distance in the metric's unit (its logarithm if `log`)."""
        self.waiting: deque[float] = deque()
        self.path: deque[float] = deque(maxlen=2 * LAG + 1)
        self.wander_near = 0.0
        self.wander_far = 0.0
        self.wandered = 0
        self.absorbed = 0
        self.drift = 0.0
        """Climb of the level within its window that is usual for this run, beyond what noise explains."""
        self.levels: deque[float] = deque(maxlen=spec.window // LAG + 1)
        self.climbs_waiting: deque[float] = deque()
        self._values = Sorted()
        self._residuals = Sorted()
        self._climbs = Sorted()

    @property
    def values(self) -> deque[float]:
        """Values the level is the median of."""
        return self._values.arrived

    @values.setter
    def values(self, values: deque[float]) -> None:
        self._values.refill(values)

    @property
    def residuals(self) -> deque[float]:
        """Distances of past observations from the level of their time."""
        return self._residuals.arrived

    @residuals.setter
    def residuals(self, values: deque[float]) -> None:
        self._residuals.refill(values)

    @property
    def climbs(self) -> deque[float]:
        """Past changes of the level over its own window, one in `LAG` of them."""
        return self._climbs.arrived

    @climbs.setter
    def climbs(self, values: deque[float]) -> None:
        self._climbs.refill(values)

    @property
    def ready(self) -> bool:
        """Whether enough has been admitted to judge a new observation."""
        return self.scale > 0.0

    @property
    def doubt(self) -> float:
        """How little is known of the series' memory: 1 at the start, 0 once it has shown enough."""
        wandered = self.wandered
        return 0.0 if wandered >= UNDECIDED else 1.0 - wandered / UNDECIDED

    @property
    def typical(self) -> float:
        """The level in the metric's own unit."""
        return math.exp(self.level) if self.spec.log else self.level

    def transform(self, x: float) -> float | None:
        """Clamp `x`, or take its logarithm; None if it has none (a norm of exactly zero)."""
        if self.spec.log:
            return math.log(min(x, LARGEST)) if x > 0.0 else None
        # Adding 0.0 turns -0.0 into 0.0: the two sort alike, and a restored state must be identical.
        return max(-LARGEST, min(LARGEST, x)) + 0.0

    def see(self, x: float, /) -> None:
        """Measure `x` against the level and scale of the past."""
        value = self.transform(x)
        self.skipped = value is None
        if value is None:
            self.z = self.excess = 0.0
            return
        self.value = value
        if self.scale > 0.0:
            self.excess = value - self.level
            self.z = self.excess / self.scale

    def admit(self, x: float, /) -> None:
        """Queue `x`; the value that leaves the queue joins level, scale and memory."""
        value = self.transform(x)
        if value is None:
            return
        self.count += 1
        self.waiting.append(value)
        if len(self.waiting) > self.spec.gap:
            self._absorb(self.waiting.popleft(), self.level)

    def rebase(self, values: list[float], /) -> None:
        """Take the level of the newest withheld samples as the new one at once.

        The newest, because the run may have come back by itself at the end of a long incident. Residuals are taken
        within short blocks: a change of level must not blunt the scale, a lasting change of scale must be learned.
        """
        transformed = [v for v in map(self.transform, values) if v is not None]
        if not transformed:
            return
        self.count += len(transformed)
        for past in (self.waiting, self.path, self.levels):
            past.clear()
        for start in range(0, len(transformed), SHORTEST):
            block = transformed[start : start + SHORTEST]
            middle = sorted(block)[len(block) // 2]
            for value in block:
                self._residuals.push(value - middle, self.spec.memory)
        self._values.refill(deque(transformed[-SHORTEST:]))
        self._refresh_level()

    def _absorb(self, value: float, level: float) -> None:
        spec = self.spec
        if len(self._values.ordered) >= 4:
            self._residuals.push(value - level, spec.memory)
        self._learn_wandering(value)
        # A short window at first: early curves fall fast, and a long one would lag by most of the fall.
        window = (self.count - spec.gap) // 4
        self._values.push(value, spec.window if window > spec.window else max(SHORTEST, window))
        self._refresh_level()
        self.absorbed += 1
        if self.absorbed % LAG == 0:
            self._learn_drift()

    def _refresh_level(self) -> None:
        self.level = level = self._values.quantile(0.5)
        size = abs(level)
        self.top = max(self.top, size)
        self._refresh_scale(size)

    def _learn_drift(self) -> None:
        """Remember by how much the level changes over a window, once that is too long ago to be part of a new ramp."""
        levels = self.levels
        levels.append(self.level)
        if len(levels) < levels.maxlen:  # type: ignore[operator]  # it has one
            return
        self.climbs_waiting.append(self.level - levels[0])
        if len(self.climbs_waiting) <= CLIMBS_WAITING:
            return
        self._climbs.push(self.climbs_waiting.popleft(), CLIMBS)
        if len(self._climbs.arrived) >= CLIMBS // 4:
            by_noise = 0.6 * self.scale * self.inflation
            self.drift = max(0.0, self._climbs.quantile(0.9) - by_noise)

    def _learn_wandering(self, value: float) -> None:
        path = self.path
        path.append(value)
        if len(path) < 2 * LAG + 1:
            if len(path) >= 3 and self.wandered == 0:
                near = abs(path[-1] - 2.0 * path[-2] + path[-3])
                self.wander_near += (near - self.wander_near) / (len(path) - 2)
                self.wander_far = self.wander_near
            return
        near = abs(value - 2.0 * path[-2] + path[-3])
        far = abs(value - 2.0 * path[LAG] + path[0])
        memory, wandered = self.spec.memory, self.wandered
        if wandered < memory:
            self.wandered = wandered = wandered + 1
        weight = 1.0 / (wandered + LAG) if wandered < memory - LAG else 1.0 / memory
        usual_near, usual_far = self.wander_near, self.wander_far
        self.wander_near = usual_near + weight * (min(near, 4.0 * usual_near + TINY) - usual_near)
        self.wander_far = usual_far + weight * (min(far, 4.0 * usual_far + TINY) - usual_far)

    def _refresh_scale(self, size: float) -> None:
        """Learn scale and inflation, in plain comparisons: this is done for every metric of every step."""
        residuals = self._residuals
        n = len(residuals.ordered)
        if n < 4:
            return
        doubt, near, far = self.doubt, self.wander_near, self.wander_far
        # The far differences of an early curve are mostly curvature, so they may not say much more than the near ones.
        most = (2.5 - doubt) * near
        trusted = min(far, most)
        wander = MEAN_ABS_TO_SIGMA / SECOND_DIFFERENCE * max(trusted, near)
        width = wander
        if n >= 32:
            width = (residuals.quantile(0.9) - residuals.quantile(0.5)) / NORMAL_Q90
        # Quantiles of few samples are too narrow as often as too wide; only one of the errors costs a false alarm.
        least = 0.75 * wander
        width = max(width, least) * (1.0 + 12.0 / (n + 4))
        self.scale = max(width, 1e-3 * size, 1e-4 * self.top, TINY)
        measured = self._measured_inflation(near, far) if near > 0.0 and self.wandered > 0 else 1.0
        self.inflation = measured + doubt * (ASSUMED_INFLATION - measured)

    @staticmethod
    def _measured_inflation(near: float, far: float) -> float:
        """Square root of the ratio of long-run to marginal variance, as for a first-order autoregression.

        The mean squared second differences at lag 1 and at a long lag stand as (1-rho)(3-rho) to 3, which solves to
        the rho below. Second differences, because first ones of a falling curve are mostly trend.
        """
        ratio = (far / near) ** 2
        rho = 2.0 - math.sqrt(1.0 + 3.0 / max(1.0, ratio))
        if rho < DEAD_ZONE:
            return 1.0
        rho = min(rho, LARGEST_RHO)
        return math.sqrt((1.0 + rho) / (1.0 - rho))

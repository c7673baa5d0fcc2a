"""A recorded metric as windows: means with their errors, because first and last values mislead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, pstdev
from typing import NamedTuple

from .thinning import Point

WINDOWS = 10
"""Parts that a whole run is seen in; a short one in as many as leave two observations to each."""


class Window(NamedTuple):
    """A part of a curve."""

    first_step: int
    last_step: int
    mean: float
    error: float
    """Standard error of the mean."""


@dataclass(frozen=True)
class Curve:
    """The finite values of one metric, in order."""

    steps: Sequence[int]
    values: Sequence[float]

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self.values)

    @cached_property
    def windows(self) -> list[Window]:
        """The curve in parts of equal size."""
        total = len(self.values)
        parts = max(1, min(WINDOWS, total // 2)) if total else 0
        edges = [total * i // parts for i in range(parts + 1)] if parts else []
        return [self._window(low, high) for low, high in pairwise(edges)]

    def _window(self, low: int, high: int) -> Window:
        part = self.values[low:high]
        spread = pstdev(part) / math.sqrt(len(part)) if len(part) > 1 else 0.0
        return Window(self.steps[low], self.steps[high - 1], fmean(part), spread)

    @property
    def first(self) -> Window:
        """The beginning."""
        return self.windows[0]

    @property
    def last(self) -> Window:
        """The end."""
        return self.windows[-1]

    @property
    def best(self) -> Window:
        """The lowest part."""
        return min(self.windows, key=lambda window: window.mean)

    @property
    def top(self) -> float:
        """The highest level that a part had."""
        return max(window.mean for window in self.windows)

    @property
    def fall(self) -> float:
        """How much lower the end is than the beginning, as a share of the beginning."""
        return (self.first.mean - self.last.mean) / abs(self.first.mean) if self.first.mean else 0.0

    def ends_at_its_best(self) -> bool:
        """Say whether the end is as low as any part of the curve, within noise and a twentieth of what was gained."""
        if len(self.windows) < 3:
            return False
        last, best = self.last, self.best
        noise = 2.0 * math.hypot(last.error, best.error)
        return last.mean <= best.mean + max(noise, 0.05 * (self.top - best.mean), 0.01 * abs(best.mean))

    def has_bump(self) -> bool:
        """Say whether a part stands above an earlier one by more than noise and a tenth."""
        lowest = math.inf
        for window in self.windows:
            if window.mean > lowest + max(0.1 * abs(lowest), 3.0 * window.error):
                return True
            lowest = min(lowest, window.mean)
        return False

    def mean_between(self, after: float, until: float) -> float | None:
        """Return the mean of the values whose steps lie in a range, or None where there are none."""
        inside = [value for step, value in zip(self.steps, self.values, strict=True) if after < step <= until]
        return fmean(inside) if inside else None

    def told(self) -> str:
        """Return the means of the parts as evidence."""
        return ", ".join(f"{window.mean:.4g}" for window in self.windows)


def curve_of(points: Iterable[Point], metric: str, *, once_per_step: bool = False) -> Curve:
    """Return the finite values of a metric; several at one step are evaluations of several sets, the first counts."""
    steps: list[int] = []
    values: list[float] = []
    for point in points:
        value = point.values.get(metric)
        if value is None or not math.isfinite(value) or (once_per_step and steps and point.step <= steps[-1]):
            continue
        steps.append(point.step)
        values.append(value)
    return Curve(steps, values)


def line_at(points: Sequence[Point], is_it: Callable[[Point], bool]) -> int | None:
    """Return the line of the first observation for which something holds."""
    return next((point.line for point in points if point.line and is_it(point)), None)

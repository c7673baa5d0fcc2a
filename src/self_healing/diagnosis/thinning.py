"""Keep the observations of a run in bounded memory: windows that grow with the run, never its ends alone.

The rules cost about a tenth of a millisecond an observation, and a log may hold millions. Up to `MOST` observations all are
kept as they are. Beyond, neighbours are joined two by two: means of what is finite, and what is not finite stays visible,
for one NaN among a thousand steps is what is looked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from ..core.signal import Fact

MOST = 16_384
"""Observations of one run that are kept; judging them takes about two seconds."""
_NEWEST = frozenset({"learning_rate", "epoch", "num_tokens", "total_flos"})
"""Counters and settings: of two, the later one is meant."""


class Point(NamedTuple):
    """One observation, or the mean of several neighbours."""

    step: int
    line: int
    values: Mapping[str, float]


class Thinned:
    """The observations of one run."""

    def __init__(self, most: int = MOST) -> None:
        self.points: list[Point] = []
        self.facts: dict[str, Fact] = {}
        self.seen = 0
        """Observations there were."""
        self.width = 1
        """Observations in one point."""
        self._most = most
        self._waiting: list[Point] = []

    def take(self, point: Point) -> None:
        """Add an observation."""
        self.seen += 1
        self._waiting.append(point)
        if len(self._waiting) < self.width:
            return
        self.points.append(_joined(self._waiting))
        self._waiting = []
        if len(self.points) >= self._most:
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            self.points = [_joined(list(pair)) for pair in pairs]
            self.width *= 2

    def finish(self) -> None:
        """Add what waits for a window to fill."""
        if self._waiting:
            self.points.append(_joined(self._waiting))
            self._waiting = []


def _joined(points: list[Point]) -> Point:
    if len(points) == 1:
        return points[0]
    sums: dict[str, tuple[float, int]] = {}
    odd: dict[str, float] = {}
    for point in points:
        for name, value in point.values.items():
            if not math.isfinite(value):
                odd[name] = value
            elif name in _NEWEST:
                sums[name] = value, 1
            else:
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1
    values = {name: total / count for name, (total, count) in sums.items()}
    return Point(points[-1].step, points[0].line, values | odd)

"""The curves of a run, thinned while they come in: however long it trains, so many points, the extremes among them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_POINTS = 2000
"""Points of one curve; every bucket keeps its lowest and its highest."""
_MOST_BUCKETS = MOST_POINTS // 2
_MOST_BRANCHES = _MOST_BUCKETS // 4
_WIDEST = 2**62


class Point(NamedTuple):
    """One observation; a value that is not finite breaks the line."""

    step: int
    value: float


class Stretch(NamedTuple):
    """A piece of a curve that is drawn in one go."""

    points: list[Point]
    means: list[Point]
    """Of a curve that was thinned, the mean of each bucket."""
    is_undone: bool
    """These steps were trained again later, after a return to an earlier state or in another attempt."""


@dataclass(slots=True)
class _Bucket:
    low: Point
    high: Point
    hole: int | None = None
    """The newest step in it whose value was not finite and has not been replaced."""
    total: float = 0.0
    count: int = 0

    def join(self, other: _Bucket) -> None:
        known = [p for p in (self.low, self.high, other.low, other.high) if math.isfinite(p.value)]
        if known:
            self.low, self.high = min(known, key=_value), max(known, key=_value)
        self.hole = self.hole if other.hole is None else other.hole
        self.total += other.total
        self.count += other.count

    def put_into(self, points: list[Point]) -> None:
        """Add its points, in the order of the steps; the quick way, because a live view asks for it every second."""
        low, high = self.low, self.high
        if not math.isfinite(low.value):  # nothing in it is finite
            pass
        elif low.step == high.step:
            points.append(low)
        elif low.step < high.step:
            points += low, high
        else:
            points += high, low
        if self.hole is not None:
            points.append(Point(self.hole, math.nan))


def _value(point: Point) -> float:
    return point.value


@dataclass(slots=True)
class _Branch:
    first: int
    last: int
    buckets: dict[int, _Bucket] = field(default_factory=dict)


class Curve:
    """One metric over the steps of a run. A step that is lower than the one before begins a new branch."""

    def __init__(self) -> None:
        self._branches: list[_Branch] = []
        self._width = 1
        self._count = 0
        self.observations = 0
        self.not_finite = 0
        self.first: Point | None = None
        self.newest: Point | None = None
        """The newest that is finite."""

    def take(self, step: int, value: float) -> None:
        """Take in one observation."""
        self.observations += 1
        point = Point(step, value)
        if not self._branches or step < self._branches[-1].last:
            self._branches.append(_Branch(step, step))
        branch = self._branches[-1]
        branch.last = step
        is_finite = math.isfinite(value)
        if is_finite:
            self.first = self.first or point
            self.newest = point
        else:
            self.not_finite += 1
        self._put(branch, point, is_finite=is_finite)
        while self._count > _MOST_BUCKETS or len(self._branches) > _MOST_BRANCHES:
            self._thin()

    def returned(self, step: int) -> None:
        """Take in that the run is back at an earlier step, also where this metric is not observed for a while."""
        if not self._branches or step > self._branches[-1].last:
            return
        if self._branches[-1].buckets:
            self._branches.append(_Branch(step, step))
        else:  # once more, and nothing was seen in between
            self._branches[-1].first = min(step, self._branches[-1].first)
            self._branches[-1].last = step

    def stretches(self) -> list[Stretch]:
        """Return what is to be drawn, the oldest first; what was undone apart from what counts."""
        found: list[Stretch] = []
        counts_to: int | None = None
        for branch in reversed(self._branches):
            points: list[Point] = []
            for bucket in branch.buckets.values():
                bucket.put_into(points)
            kept = points if counts_to is None else [point for point in points if point.step < counts_to]
            undone = [] if counts_to is None else [point for point in points if point.step >= counts_to]
            if kept:
                found.append(Stretch(kept, self._means(branch, counts_to), is_undone=False))
            if undone:
                found.append(Stretch(kept[-1:] + undone, [], is_undone=True))
            counts_to = branch.first if counts_to is None else min(counts_to, branch.first)
        found.reverse()
        return found

    def _means(self, branch: _Branch, counts_to: int | None) -> list[Point]:
        """Return the means of the buckets that count, each in the middle of its steps."""
        if self._width == 1:
            return []
        half = self._width // 2
        means = [Point(key * self._width + half, b.total / b.count) for key, b in branch.buckets.items() if b.count]
        return [point for point in means if (counts_to is None or point.step < counts_to) and point.step <= branch.last]

    def recent(self, most: int) -> list[Point]:
        """Return the newest points that count, for a small picture."""
        points = [point for stretch in self.stretches() if not stretch.is_undone for point in stretch.points]
        return points[-most:]

    def _put(self, branch: _Branch, point: Point, *, is_finite: bool) -> None:
        step, value = point
        key = step // self._width
        bucket = branch.buckets.get(key)
        if bucket is None:
            hole, total, count = (None, value, 1) if is_finite else (step, 0.0, 0)
            branch.buckets[key] = _Bucket(point, point, hole, total, count)
            self._count += 1
        elif not is_finite:
            bucket.hole = step
        else:
            if bucket.hole == step:  # the step was run again, and came out well
                bucket.hole = None
            bucket.total += value
            bucket.count += 1
            # A comparison with what is no number is false: the first number takes its place.
            if not bucket.low.value <= value or not math.isfinite(bucket.low.value):
                bucket.low = point
            if not bucket.high.value >= value or not math.isfinite(bucket.high.value):
                bucket.high = point

    def _thin(self) -> None:
        """Make every bucket twice as wide; where that is not enough, the oldest branch goes."""
        if self._width >= _WIDEST or len(self._branches) > _MOST_BRANCHES:
            self._count -= len(self._branches.pop(0).buckets)
            return
        self._width *= 2
        for branch in self._branches:
            wider: dict[int, _Bucket] = {}
            for key, bucket in branch.buckets.items():
                if (known := wider.get(key // 2)) is None:
                    wider[key // 2] = bucket
                else:
                    known.join(bucket)
            branch.buckets = wider
        self._count = sum(len(branch.buckets) for branch in self._branches)

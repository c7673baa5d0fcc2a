"""How long the steps took that a return has undone, from the times of the observations around them."""

from __future__ import annotations

from collections import deque

MOST_REMEMBERED = 512
"""Observations whose times are remembered; what was undone before them is estimated from them."""


class StepTimes:
    """When one process was at which step, as far back as anybody returns to."""

    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._seen: deque[tuple[int, float]] = deque(maxlen=MOST_REMEMBERED)
        """Steps in rising order, each with the time at which the run was there, less what was lost before."""
        self._lost_s = 0.0

    def seen(self, step: int, time_s: float) -> None:
        """Take note of an observation; only the first one of a step says when the run came there."""
        if not self._seen or step > self._seen[-1][0]:
            self._seen.append((step, time_s - self._lost_s))

    def returned(self, to_step: int, time_s: float) -> float:
        """Take note of a return and say how many seconds it has undone: all since the run was at that step."""
        now_s = time_s - self._lost_s
        reached_s = self._when_at(to_step, now_s)
        while self._seen and self._seen[-1][0] >= to_step:
            self._seen.pop()
        self._seen.append((to_step, reached_s))
        lost_s = max(0.0, now_s - reached_s)
        self._lost_s += lost_s
        return lost_s

    def _when_at(self, step: int, now_s: float) -> float:
        """Return when the run was at a step, between and before what was seen by how fast steps were."""
        if not self._seen:
            return now_s
        after = next(((s, t) for s, t in self._seen if s >= step), None)
        before = next(((s, t) for s, t in reversed(self._seen) if s <= step), None)
        if before is None and after is not None:
            first, last = self._seen[0], self._seen[-1]
            each_s = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
            return max(self._began_s, after[1] - (after[0] - step) * each_s)
        if after is None or before is None or after[0] == before[0]:
            return now_s if before is None else before[1]
        share = (step - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])

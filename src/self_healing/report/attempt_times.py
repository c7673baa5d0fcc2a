"""Where the time of one attempt went, on the clock of the ledger: what it told of itself, and what lies around that."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core import notes
from ..core.goodput import CLASS_OF, Spending, TimeClass
from ..core.ledger import Entry
from .clean import seconds_of, step_of
from .spent_time import has_trained, trained_in_vain

_BLOCK = 16
"""Steps that are timed together: a guarded training tells of usual ones up to eight at a time."""
_BLOCKS = 64
"""The newest blocks, whose median is taken for how long a step takes: a save in one of them does not count."""
_AT_ONCE_S = 0.0005
"""Lines closer to one another were written together."""


class StepsByLines:
    """The steps of an attempt since its last note, by the times of its lines."""

    def __init__(self, base: int | None = None) -> None:
        """Begin after a step; without one, before the first that is told of."""
        self.base = base
        self.last: int | None = None
        self.first_s = 0.0
        """When the first of them was done."""
        self._last_s = 0.0
        self._ran = 0
        self._block = 0, 0.0
        """The step and the time with which the block at hand began."""
        self._blocks: deque[float] = deque(maxlen=_BLOCKS)
        """Seconds a step."""
        self._timed = 0, 0.0
        """All steps that followed on another one, and how long they took."""

    def done(self, step: int, time_s: float) -> None:
        """Take in that a step is done."""
        self.base = max(0, step - 1) if self.base is None else self.base
        if self.last is None:
            self.first_s = time_s
            self._ran = max(0, step - self.base)
            self._block = step, time_s
        elif step > self.last:
            self._ran += step - self.last
            self._timed = self._timed[0] + step - self.last, self._timed[1] + max(0.0, time_s - self._last_s)
            if time_s - self._last_s > _AT_ONCE_S:
                self._close_block()
        self.last, self._last_s = step, time_s

    def _close_block(self) -> None:
        """End the block with the last line, if it is long enough: that was the last of those written together."""
        step, since = self._block
        steps = (self.last or 0) - step
        if steps >= _BLOCK:
            self._blocks.append(max(0.0, self._last_s - since) / steps)
            self._block = self.last or 0, self._last_s

    def returned(self, step: int, time_s: float) -> None:
        """Take in that the run is at an earlier step again."""
        if self.last is not None:
            self.last, self._last_s = step, time_s
            self._block = step, time_s

    def each_s(self) -> float:
        """Return how long one takes; 0 where that is not known."""
        if self._blocks:
            return statistics.median(self._blocks)
        steps, seconds = self._timed
        return seconds / steps if steps else 0.0

    def seconds(self, most: float) -> tuple[float, float]:
        """Return how long those took that were not undone, and those that were; together at most so long."""
        kept = max(0, (self.last or 0) - (self.base or 0))
        productive = min(most, kept * self.each_s())
        return productive, min(most - productive, max(0, self._ran - kept) * self.each_s())


@dataclass(slots=True)
class AttemptTimes:
    """What one start of the run left in the ledgers."""

    number: int
    gap: TimeClass
    """What the time between the attempt before and this one is."""
    announced_s: float | None = None
    """When a supervisor started it."""
    first_s: float | None = None
    """Its first line of its own."""
    last_s: float = -math.inf
    over_s: float | None = None
    """When its supervisor saw it end."""
    is_hung: bool = False
    is_finished: bool = False
    """The training has said that it ended, well or not."""
    told: dict[Spending, float] | None = None
    """Its own account, the newest."""
    told_at_s: float = 0.0
    first_step: int | None = None
    last_step: int = 0
    steps: StepsByLines = field(default_factory=StepsByLines)

    def take(self, entry: Entry) -> None:
        """Take in a line that the training has written."""
        self.first_s = entry.time if self.first_s is None else self.first_s
        self.last_s = max(self.last_s, entry.time)
        match entry.kind, entry.name:
            case "note", notes.SPENT:
                self._take_account(entry)
            case "note", notes.ENDED:
                self.is_finished = True
            case "signal", "metrics":
                self.steps.done(entry.step, entry.time)
            case "signal", "returned":
                self.steps.returned(entry.step, entry.time)

    def _take_account(self, entry: Entry) -> None:
        body: Any = entry.body.get("seconds")
        known = body if isinstance(body, Mapping) else {}
        self.told = {kind: seconds_of(known.get(kind)) for kind in Spending}
        self.told_at_s = entry.time
        self.first_step = (step_of(entry.body.get("first_step")) or 0) if has_trained(self.told) else None
        self.last_step = max(self.first_step or 0, entry.step)
        self.steps = StepsByLines(entry.step)

    def ended_s(self) -> float:
        """Return when it ended, as far as anybody knows."""
        return max(self.last_s, *(each for each in (self.announced_s, self.over_s, -math.inf) if each is not None))

    def trained_since_s(self) -> float | None:
        """Return when `train()` was called, by its own account."""
        return None if self.told is None else self.told_at_s - math.fsum(self.told.values())

    def began_s(self) -> float:
        """Return when it began: its process, where a supervisor started it, else its training."""
        times = (self.announced_s,) if self.announced_s is not None else (self.first_s, self.trained_since_s())
        return min((each for each in times if each is not None), default=self.ended_s())


class AttemptSpent:
    """The time of one attempt by class, from a moment on; it adds up to the time from then to its end."""

    def __init__(self, attempt: AttemptTimes, since_s: float, *, is_first: bool) -> None:
        self.seconds = dict.fromkeys(TimeClass, 0.0)
        self.estimated_s = 0.0
        """How much of it is by the lines of steps."""
        self.first_step, self.last_step = attempt.first_step, attempt.last_step
        self._starting = TimeClass.START_UP if is_first else TimeClass.RESTARTS
        end = max(since_s, attempt.ended_s())
        if attempt.first_s is None:  # a command without the healer in it, or one that died before it was there
            self._add(TimeClass.UNKNOWN, end - since_s)
            return
        first = min(end, max(since_s, attempt.first_s))
        at = (
            self._add_told(attempt, attempt.told, since_s, first)
            if attempt.told
            else self._add_start(attempt, since_s, first)
        )
        self._add_rest(attempt, min(end, at), end)

    def _add_told(self, attempt: AttemptTimes, told: Mapping[Spending, float], since_s: float, first: float) -> float:
        """Add what it told, and what came before; return until when that goes."""
        at, all_told = max(since_s, attempt.told_at_s), math.fsum(told.values())
        trained_since = max(since_s, at - all_told)
        before = max(0.0, min(first, trained_since) - since_s)
        self._add(self._starting, before)
        # One of the two clocks was set, or the machine slept: what neither explains.
        self._add(TimeClass.UNKNOWN, at - since_s - before - all_told)
        for kind, spent in told.items():
            self._add(self._starting if kind is Spending.START_UP else CLASS_OF[kind], spent)
        return at

    def _add_start(self, attempt: AttemptTimes, since_s: float, first: float) -> float:
        """Add what came before the first step of an attempt that told nothing; return until when that goes."""
        each = attempt.steps.each_s()
        at = max(first, attempt.steps.first_s - each) if each else first
        self._add(self._starting, at - since_s)
        return at

    def _add_rest(self, attempt: AttemptTimes, at: float, end: float) -> None:
        """Add what came after its last account: steps as far as lines tell of them, and what it ended with."""
        last = max(at, min(end, attempt.last_s))
        productive, undone = attempt.steps.seconds(last - at)
        self.estimated_s = productive + undone
        self._add(TimeClass.PRODUCTIVE, productive)
        self._add(TimeClass.REPLAYED, undone)
        if attempt.steps.last is not None:
            self.first_step = attempt.steps.base if self.first_step is None else self.first_step
            self.last_step = attempt.steps.last
        afterwards = TimeClass.OTHER if attempt.is_finished else TimeClass.UNKNOWN
        self._add(afterwards, last - at - self.estimated_s)
        self._add(TimeClass.STALLED if attempt.is_hung else afterwards, end - last)

    def _add(self, kind: TimeClass, seconds: float) -> None:
        self.seconds[kind] += max(0.0, seconds)

    def undo_after(self, step: int) -> None:
        """Take what was trained after a step for replayed: a later attempt has trained it again."""
        if self.first_step is not None:
            lost = trained_in_vain(self.seconds[TimeClass.PRODUCTIVE], self.first_step, self.last_step, step)
            self.seconds[TimeClass.PRODUCTIVE] -= lost
            self.seconds[TimeClass.REPLAYED] += lost

"""How often a state is saved, and which saved one makes room for it. Pure.

With few slots the ages kept are spaced exponentially: many recent states, a few old ones, for trouble is usually
seen soon after it began and sometimes late. Two states are never given up for a new one: the newest good one, and
the oldest one on its way to become the next good one. Without the second, a short interval would replace every
candidate before it has proved itself, and the last good state would age for ever. Where there is room for more, the
newest one of the deep tier stays too: the deepest return goes to it, and not to the first state of the run.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .verdicts import Condition

FEWEST_SLOTS = 2
"""One for the newest good state and one for its successor; the state before step 1 has a place of its own."""

ROOM_FOR_DEEP = 3
"""With so few states, all that is guarded would leave none to make room for a new one."""

LARGEST_SHARE = 0.01
"""Of the time that training takes, what may go into saving states, however few steps the user is ready to lose."""

AIMED_SHARE = 0.9 * LARGEST_SHARE
"""What the interval is chosen for: the time of a step and of a state are estimates, a few per cent off."""

ASSUMED_FAILURES = 1.0
ASSUMED_OVER_S = 24 * 3600.0
"""What is assumed before anything is measured: one failure a day, weighed like a day of observation."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A state that takes up room."""

    step: int
    condition: Condition
    is_deep: bool = False


def slot_for(slots: Sequence[Slot | None], step: int, *, first_step: int = 0) -> int | None:
    """Return the place for the state of a step, or None where all that is kept is worth more than it.

    Args:
        slots: What each place holds; None is a free place.
        step: The step of the state to be saved.
        first_step: The step of the state that is kept elsewhere for ever: 0, or where the run was resumed.

    """
    held = [(place, slot) for place, slot in enumerate(slots) if slot is not None]
    if len(held) < len(slots) or not held:
        return next((place for place, slot in enumerate(slots) if slot is None), None)
    sick = [place for place, slot in held if slot.condition is Condition.SICK]
    if sick:
        return sick[0]
    guarded = _guarded([slot for _, slot in held])
    by_age = sorted(held, key=lambda entry: -entry[1].step)
    # Ages in units of the youngest one's, and one added, so that the state to be saved has an age too.
    unit = max(1, step - by_age[0][1].step)
    ages = [1.0, *(1 + max(0, step - slot.step) / unit for _, slot in by_age), 1 + max(0, step - first_step) / unit]
    gaps = [
        (ages[index + 2] / ages[index], place) for index, (place, slot) in enumerate(by_age) if slot.step not in guarded
    ]
    # The one whose neighbours in age would stay the closest leaves the smallest hole.
    return min(gaps)[1] if gaps else None


def _guarded(held: Sequence[Slot]) -> set[int]:
    good = max((slot.step for slot in held if slot.condition is Condition.GOOD), default=None)
    heirs = [slot.step for slot in held if slot.condition is Condition.INTACT and (good is None or slot.step > good)]
    deep = max((slot.step for slot in held if slot.is_deep), default=None) if len(held) > ROOM_FOR_DEEP else None
    return {step for step in (good, min(heirs, default=None), deep) if step is not None}


class Pace:
    """How long a step takes, and how much longer one with a state to be taken.

    The host sees how long it is busy with a state; a device may take longer, which shows in the step as a whole. On a
    machine that others use too, steps differ by more than a state costs. So a step with a state is compared with those
    right before it, and only what their scatter does not explain is believed: a cost that is none would space states
    further than steps may be lost, and no cost at all would have one taken at every step.
    """

    KEPT = 15
    OF_A_MEDIAN = 1.4826 * 1.2533
    """What the median distance from a median is multiplied by, and divided by the root of the count, for its error."""
    ERRORS = 2.0
    """How many standard errors are taken for scatter."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=self.KEPT)
        self._longer: deque[float] = deque(maxlen=self.KEPT)
        self._busy: deque[float] = deque(maxlen=self.KEPT)

    @property
    def step_s(self) -> float:
        """The median of the newest steps without a state."""
        return median(self._usual) if self._usual else 0.0

    @property
    def stall_s(self) -> float:
        """What taking a state adds to a step: what the host is busy for, or more where that is beyond doubt."""
        busy = median(self._busy) if self._busy else 0.0
        if not self._longer:
            return busy
        longer = median(self._longer)
        scatter = median(abs(each - longer) for each in self._longer)
        return max(busy, longer - self.ERRORS * self.OF_A_MEDIAN * scatter / math.sqrt(len(self._longer)))

    def stepped(self, seconds: float, *, took_state: bool) -> None:
        """Take note of a step that is complete."""
        if not took_state:
            self._usual.append(seconds)
        elif self._usual:
            self._longer.append(seconds - self.step_s)

    def was_busy(self, seconds: float) -> None:
        """Take note of how long the host was busy with a state."""
        self._busy.append(seconds)


def failures_per_second(failures: int, watched_s: float) -> float:
    """Return the rate of failures: what was assumed, moved by what was seen."""
    return (ASSUMED_FAILURES + failures) / (ASSUMED_OVER_S + max(0.0, watched_s))


def steps_between(
    *, stall_s: float, step_s: float, failure_rate: float, max_lost_steps: int, forced: int | None = None
) -> int:
    """Return after how many steps the next state is saved, by Daly's formula for the least time lost.

    Args:
        stall_s: How long training waits for one snapshot.
        step_s: How long a step takes.
        failure_rate: Failures per second.
        max_lost_steps: The most steps a failure may cost; it bounds the interval whatever the formula says, unless
            saving might then take more than `LARGEST_SHARE` of the time.
        forced: The user's own interval, which wins over all of it.

    """
    if forced is not None:
        return max(1, forced)
    most = max(1, max_lost_steps)
    if not (step_s > 0 and failure_rate > 0 and math.isfinite(step_s) and math.isfinite(stall_s)):
        return most
    between_failures_s = 1 / failure_rate
    share = max(0.0, stall_s) / (2 * between_failures_s)
    if share >= 1:  # saving takes as long as a failure is away: the formula holds no longer
        interval_s = between_failures_s
    else:
        young_s = math.sqrt(2 * max(0.0, stall_s) * between_failures_s)
        interval_s = young_s * (1 + math.sqrt(share) / 3 + share / 9) - max(0.0, stall_s)
    # Compared as numbers with a fraction: a quotient too large for an integer must not be one first.
    steps = interval_s / step_s
    bound = max(most, max(0.0, stall_s) / (AIMED_SHARE * step_s))
    return max(1, round(min(steps, bound, 1e9)))

"""When the next state of a run is taken, how many are kept, and which of them makes room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ...snapshots.budget import free_memory, local_ranks, slots_within
from ...snapshots.spacing import FEWEST_SLOTS, Pace, Slot, failures_per_second, slot_for, steps_between
from ...snapshots.verdicts import SavedState, Tier

MOST_SLOTS = 6
"""States besides the first one; with exponential ages more would add little."""


class ScheduleSettings(Protocol):
    """What the user may say about it."""

    snapshot_every_steps: int | None
    max_lost_steps: int
    snapshot_memory_fraction: float


class StateSettings(ScheduleSettings, Protocol):
    """What the user may say about states."""

    good_after: int
    shared_memory: bool
    shared_memory_max_fraction: float


class NoRoomError(Exception):
    """Host memory has no room for the fewest states that are of use."""


class StateSchedule:
    """Measures what states cost and how often they were needed, and says when the next one is worth it."""

    def __init__(self, settings: ScheduleSettings) -> None:
        self.settings = settings
        self.slots: int | None = None
        """States besides the first one that memory has room for, once that is known."""
        self._next = 0
        """The step at which the next state is taken."""
        self._took_at = -1
        """The step at which the last state was taken."""
        self._before_trouble: int | None = None
        """The last step before the trouble that the run has returned from: a second return should not lose more."""
        self._pace = Pace()
        self._began_s = time.perf_counter()

    @property
    def is_exact(self) -> bool:
        """Whether the user says after how many steps each state is taken."""
        return self.settings.snapshot_every_steps is not None

    @property
    def next_step(self) -> int:
        """The step at which the next state is worth it."""
        return self._next if self._before_trouble is None else min(self._next, self._before_trouble)

    def begin(self, step: int) -> None:
        """Start anew: the state of this moment is the first."""
        self._next, self._began_s = step, time.perf_counter()
        self._before_trouble = None

    def is_time(self, step: int) -> bool:
        """Say whether a state is to be taken at a step."""
        return step >= self._next or step == self._before_trouble

    def stepped(self, step: int, seconds: float) -> None:
        """Take note of how long the step before this one took."""
        self._pace.stepped(seconds, took_state=self._took_at == step - 1)

    def took(self, step: int, *, busy_s: float, first_step: int, returns: int) -> None:
        """Take note of a state that was taken, and find out when the next one is."""
        self._pace.was_busy(busy_s)
        self._took_at = step
        if step == self._before_trouble:
            self._before_trouble = None
        between = steps_between(
            stall_s=self._pace.stall_s, step_s=self._pace.step_s,
            failure_rate=failures_per_second(returns, time.perf_counter() - self._began_s),
            max_lost_steps=self.settings.max_lost_steps, forced=self.settings.snapshot_every_steps,
        )  # fmt: skip
        if not self.is_exact:  # at first after 1, 2, 4, 8 ... steps: a young run has little to fall back on
            between = min(between, max(1, step - first_step))
        self._next = step + between

    def missed(self, step: int) -> None:
        """Try again after as many steps as have gone by since the last state: the one that was due could not be taken."""
        self._next = step + max(1, step - self._took_at)

    def returned(self, step: int, *, onset: int | None) -> None:
        """Take the next state as soon as there is something new: the one of this step is kept already.

        Where it is known at which step the trouble began, another one right before it: if it comes again, no more than
        that is to be trained anew.
        """
        self._next = step + 1
        self._before_trouble = None if onset is None or onset - 1 <= step else onset - 1

    def find_room(self, nbytes: int, states: Sequence[SavedState], limited: Callable[[int, int, int], int]) -> bool:
        """Say whether it was just found out how many states there is room for.

        At first the optimizer holds nothing yet, so that only the second time shows what a state takes.

        Raises:
            NoRoomError: there is not even room for the fewest.

        """
        wanted, needed = (MOST_SLOTS, FEWEST_SLOTS) if states else (1, 1)
        free, ranks = free_memory(), local_ranks(os.environ)
        fraction = self.settings.snapshot_memory_fraction
        # One more is set aside for a moment when the run returns, or a state goes to disk.
        slots = slots_within(nbytes, free=free, fraction=fraction, local_ranks=ranks, most=wanted + 1)
        if slots < needed:
            raise NoRoomError(f"a state takes {nbytes:,} bytes of host memory, of which {free:,} are free")
        if states:
            self.slots = limited(max(needed, slots - 1), nbytes, FEWEST_SLOTS)
        return bool(states)

    def can_keep(self, states: Sequence[SavedState], step: int) -> bool:
        """Say whether there is a slot for the state of a step, free or worth giving up another state for."""
        return len(states) <= (self.slots or 0) or place_for(states, step) is not None


def place_for(states: Sequence[SavedState], step: int) -> int | None:
    """Return which of the states after the first one makes room; None where each is worth more than a new one."""
    if not states:
        return 0
    slots = [Slot(each.step, each.verdict.condition, is_deep=each.tier is Tier.DEEP) for each in states[1:]]
    return slot_for(slots, step, first_step=states[0].step)

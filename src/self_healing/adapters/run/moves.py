"""Where a run is asked to go, and the one place that knows of it until the run is there.

A plan only asks: an earlier state is put back when the loop is at a place from which that can be done, and by then another
state may have to do, or nothing may come of it. Whatever becomes of a move, the core is told of it here, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...core.signal import ReturnDropped, Returned, Signal


@dataclass(frozen=True, slots=True)
class ReturnTo:
    """Return to a state in memory."""

    key: str
    skip: frozenset[int] = frozenset()
    """Steps whose data are left out when they are trained again, as global steps after their update."""
    skip_more: int = 0
    """Steps behind them whose data, not fetched yet, are left out too."""
    onset: int | None = None
    """The first step that may have been harmed, where that is why the run returns."""
    asked: str = ""
    """The state that was asked for first, where this is another one."""
    because: str = ""
    """Why it is another one."""

    @property
    def returns_to(self) -> str:
        """The state that a plan has asked for."""
        return self.asked or self.key

    def leaving_out(self, steps: Iterable[int], *, more: int) -> ReturnTo:
        """Return the move with data left out when they come again."""
        return replace(self, skip=frozenset(steps), skip_more=more)

    def instead(self, key: str, because: str) -> ReturnTo:
        """Return the move to another state than was asked for."""
        told = f"{self.because}; {because}" if self.because else because
        return replace(self, key=key, asked=self.returns_to, because=told)


@dataclass(frozen=True, slots=True)
class Resume:
    """Leave the loop, and enter `train()` anew."""

    path: str | None
    """A checkpoint; None begins again, where no step was complete yet."""
    left_at: int | None = None
    """The step that is left for an earlier one; None where the run goes on at the step that it is at."""
    onset: int | None = None
    """The first step that may have been harmed, where that is why the run returns."""

    @property
    def returns_to(self) -> str:
        """The state that a plan has asked for; nothing where the run does not go back."""
        return self.path or "" if self.left_at is not None else ""


@dataclass(frozen=True, slots=True)
class Stop:
    """End training at this step."""

    reason: str
    returns_to: str = ""


Move = ReturnTo | Resume | Stop


class RollBackTo(Exception):  # no error: it only unwinds the epoch
    """Returns to a state from inside an epoch; leaves the loop where that state is out of reach."""

    def __init__(self, move: ReturnTo) -> None:
        super().__init__(f"return to {move.key}")
        self.move = move


class LeaveLoop(Exception):  # no error: it only unwinds the loop
    """Leaves the training loop for a move that begins outside of it."""

    def __init__(self, move: Resume) -> None:
        super().__init__(f"go on from {move.path or 'the start'}")
        self.move = move


class PendingMove:
    """What a run was asked for and has not done yet: one move at most, for a later one takes the place of an earlier."""

    def __init__(self) -> None:
        self.asked: Move | None = None
        """What waits for a place in the loop from which it can be done."""
        self.under_way: ReturnTo | Resume | None = None
        """What has begun, and has not come to its end."""
        self.tell: Callable[[Signal], object] = nobody_listens
        """Is given what the core must know."""
        self.step: Callable[[], int] = lambda: 0
        self.returns = 0
        """How often the run has gone back, be it to memory or to a checkpoint."""
        self.steps_lost = 0
        """Steps that were undone by that."""
        self._untold: list[ReturnDropped] = []

    @property
    def is_returning(self) -> bool:
        """Whether a state in memory is about to be returned to."""
        return isinstance(self.asked, ReturnTo)

    @property
    def goes_back_on_disk(self) -> bool:
        """Whether `train()` is being entered for a checkpoint of an earlier step than the run was at."""
        return isinstance(self.under_way, Resume) and self.under_way.left_at is not None

    @property
    def stop_reason(self) -> str | None:
        """Why training is to end at this step, if it is."""
        return self.asked.reason if isinstance(self.asked, Stop) else None

    def ask(self, move: Move) -> None:
        """Ask for a move, in the place of what was asked for before; nothing comes after a stop."""
        if isinstance(self.asked, Stop):
            self._drop(move, "training ends")
            return
        self._replaced(self.asked, move)
        self.asked = move

    def take(self) -> ReturnTo | Resume | None:
        """Return where to go, once: it is under way from now on."""
        self._tell_of_drops()
        if self.asked is None or isinstance(self.asked, Stop):
            return None
        move, self.asked = self.asked, None
        self._replaced(self.under_way, move)
        self._tell_of_drops()
        self.under_way = move
        return move

    def dropped(self, why: str) -> None:
        """Give up what is asked for and under way, because the run ends; that it is to stop stays."""
        for move in (self.under_way, self.asked):
            self._drop(move, why)
        self.under_way = None
        if not isinstance(self.asked, Stop):
            self.asked = None
        self._tell_of_drops()

    def arrived(self, move: ReturnTo, *, step: int, from_step: int) -> None:
        """Say that the run is at the state of a move, which may be another one than was taken."""
        self.under_way = None
        self.returns += 1
        self.steps_lost += from_step - step
        told = Returned(
            step=step,
            time_s=time.time(),
            key=move.key,
            from_step=from_step,
            asked=move.returns_to,
            because=move.because,
        )
        self.tell(told)

    def entered(self) -> None:
        """Say that `train()` was entered: what had it resume from a checkpoint is there."""
        move = self.under_way
        if isinstance(move, Resume):
            self.under_way = None
            if move.left_at is not None:
                self.arrived(ReturnTo(move.returns_to), step=self.step(), from_step=move.left_at)

    def close(self) -> None:
        """Hold on to nobody any more."""
        self.tell, self.step = nobody_listens, lambda: 0

    def _replaced(self, move: Move | None, by: Move) -> None:
        if move is not None and move.returns_to != by.returns_to:
            answers = bool(by.returns_to) or isinstance(by, Stop)
            where = by.returns_to or "the step that the run is at"
            self._drop(
                move, "training ends" if isinstance(by, Stop) else f"it goes on from {where}", goes_on=not answers
            )

    def _drop(self, move: Move | None, why: str, *, goes_on: bool = False) -> None:
        if move is not None and move.returns_to:
            told = ReturnDropped(
                step=self.step(), time_s=time.time(), asked=move.returns_to, because=why, goes_on=goes_on
            )
            self._untold.append(told)

    def _tell_of_drops(self) -> None:
        """Tell the core, which may be in the middle of a plan when a move is replaced."""
        while self._untold:
            self.tell(self._untold.pop(0))


def nobody_listens(_signal: Signal) -> None:
    """Stand for a listener that is not there."""

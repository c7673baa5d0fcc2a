"""States between two steps and the data since then: taken, kept in reach, and put back.

The loop that goes on from there is somebody else's: see `in_loop` for the Trainer's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..run.moves import ReturnTo, RollBackTo
from .data_windows import DataWindows, EpochData, Place
from .guard_state import is_settled
from .memory_snapshots import MemorySnapshots, Snapshot, SnapshotDamagedError, oldest
from .restart import NoRestart

if TYPE_CHECKING:
    from ..step.step_guard import StepGuard
    from ..wrapping import Wrapping
    from .old_loop import OldLoop

logger = logging.getLogger("self_healing.rollback")

DATA_BUDGET_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Arrival:
    """What there is to say when a state is put back."""

    snapshot: Snapshot
    move: ReturnTo
    from_step: int
    repeats: bool
    """The first step afterwards is the one that it was, so that its loss is a test of the state."""


class StateReturns:
    """Takes states between steps, keeps the data since, and puts both back."""

    def __init__(
        self,
        trainer: Any,
        *,
        slots: int = 2,
        budget_bytes: int = DATA_BUDGET_BYTES,
        guard: StepGuard | None = None,
        tell: Callable[[str, str], None] = lambda _name, _text: None,
        make_room: Callable[[Sequence[Snapshot]], Snapshot] = oldest,
        on_return: Callable[[Arrival], None] = lambda _arrival: None,
    ) -> None:
        self.trainer = trainer
        self.guard = guard
        self.snapshots = MemorySnapshots(trainer, slots=slots, guard=guard, make_room=make_room)
        self.data = DataWindows(budget_bytes)
        self.re_enters = True
        """The loop itself can take up an earlier state; else it has to be entered anew."""
        self.restart = NoRestart()
        """Enters the loop anew, where that can be done from here."""
        self.old: OldLoop | None = None
        """What stands in for a loop whose epochs cannot be entered."""
        self.on_error: Callable[[Exception], ReturnTo | None] = lambda _error: None
        """Is asked about an exception inside an epoch; what it returns is returned to, else the exception goes on."""
        self.on_epoch_over: Callable[[], None] = lambda: None
        """May ask for a return by raising `RollBackTo`, when an epoch was trained, evaluated and saved."""
        self.returns = 0
        """How often an earlier state was returned to."""
        self.lost_steps = 0
        """Steps that were trained once more because of it."""
        self.before_return: Callable[[], None] = lambda: None
        self.choose_instead: Callable[[str], str | None] = lambda _key: None
        """Is asked for the key of an older state where one turns out to be damaged."""
        self._tell = tell
        self._on_return = on_return
        self._epoch: EpochData | None = None
        self._left_out: set[str] = set()
        """What no state holds, by name: that is said once."""

    @property
    def private_bytes(self) -> int:
        """How much of this process's own memory states and kept batches take; shared memory is not its own."""
        own: int = sum(each.nbytes for each in self.snapshots if each.slot.backing is None)
        return self.data.nbytes + own

    def attach(self, wrapping: Wrapping) -> None:
        """Stand around the loop, where it is somebody else's."""

    def end(self) -> None:
        """Let go of all states and data when training has ended; the wrapping is for its owner to undo."""
        self.snapshots.clear()
        self.data.begin()
        self.restart.cancel()
        if self.old is not None:
            self.old.settle()

    def let_go(self) -> None:
        """Hold on to nothing any more."""
        self.end()
        vars(self.restart).clear()
        vars(self).clear()

    def enter_anew(self, _move: ReturnTo) -> str | None:
        """Return what the loop is to resume from in order to return to a state; None where that cannot be done."""
        return None

    def leave_out_after_restart(self, steps: Iterable[int], more: int) -> None:
        """Leave the data of steps and of some more out when training is entered anew before them."""
        self.data.leave_out_after_restart(steps, more=more * self._accumulation())

    def take(self) -> Snapshot | None:
        """Set the state between two steps aside: to be called from `on_step_begin`, when the step's data are there.

        At the end of a step would be too early: it is logged, saved and evaluated afterwards. Returns None while it is
        not known whether the last step was applied.
        """
        epoch = self._epoch
        assert epoch is not None, "a state is taken inside an epoch"
        if not is_settled(self.guard):
            return None
        snapshot = self.snapshots.take(self._place_in(epoch))
        snapshot.is_restart_only = not self.re_enters
        self._tell_what_is_left_out(snapshot.capture.extras.left_out)
        self._forget_what_nobody_returns_to(epoch)
        self._look_what_is_in_reach()
        return snapshot

    def forgets_what_is_outgrown(self) -> bool:
        """Let go of the states that lack what is trained by now, with a word about it; say whether there were any."""
        outgrown = self.snapshots.without_what_trains_now()
        for snapshot in outgrown:
            self.snapshots.drop(snapshot.key)
        if outgrown:
            self._tell(
                "states-outgrown",
                f"other or more parameters are trained from step {self._step()} on: {len(outgrown)} states do not hold their values, "
                "so that no return goes to them, and a new one is taken",
            )
        return bool(outgrown)

    def _tell_what_is_left_out(self, names: list[str]) -> None:
        new = [name for name in names if name not in self._left_out]
        self._left_out.update(new)
        if new:
            self._tell(
                "not-in-a-state", f"{', '.join(new)} of the optimizer is in no state: it stays as it is at a return"
            )

    def is_in_reach(self, key: str) -> bool:
        """Say whether a state can be returned to inside the loop."""
        snapshot = self.snapshots.get(key)
        return snapshot is not None and self._epoch is not None and self._holds(snapshot)

    # -- returning -----------------------------------------------------------------------------------

    def return_to(self, move: ReturnTo) -> EpochData:
        """Put a state and the data since back; leave the loop with the request where that cannot be done in here."""
        snapshot = self.snapshots.get(move.key)
        if snapshot is None or not self._holds(snapshot):
            why = "is not kept any more" if snapshot is None else "lies before the data that are kept"
            unreached = RollBackTo(move)
            unreached.add_note(f"{move.key} {why}: training has to be entered anew")
            raise unreached
        came_from, place = self._step(), snapshot.place
        self.before_return()
        try:
            self.snapshots.restore(snapshot)
        except SnapshotDamagedError as error:
            other = self._instead_of(move, str(error))
            if other is None:
                raise RollBackTo(move) from error
            return self.return_to(other)
        left_out = self.data.leave_out(place, move.skip, more=move.skip_more * self._accumulation())
        place.epoch.rewind(place.index, silent_until=place.index + place.fetched)
        self._has_returned(Arrival(snapshot, move, came_from, repeats=not move.skip))
        if left_out:
            logger.warning("%d batches are left out", left_out)
        return place.epoch

    def _has_returned(self, arrival: Arrival) -> None:
        snapshot = arrival.snapshot
        self.returns += 1
        self.lost_steps += arrival.from_step - snapshot.step
        logger.warning("returned from step %d to %s", arrival.from_step, snapshot.key)
        self._on_return(arrival)

    def _instead_of(self, move: ReturnTo, damage: str) -> ReturnTo | None:
        """Choose another state where the one that was asked for is damaged; None where there is none."""
        self._tell("state-damaged", damage)
        other = self.choose_instead(move.key)
        self.snapshots.drop(move.key)
        return None if other is None else move.instead(other, damage)

    def _forget_what_nobody_returns_to(self, epoch: EpochData) -> None:
        places = (each.place for each in self.snapshots if not each.is_restart_only)  # the oldest comes first
        self.data.forget_before(next(places, None) or Place(epoch, epoch.window, 0))

    def _look_what_is_in_reach(self) -> None:
        for snapshot in self.snapshots:
            if snapshot.is_restart_only:
                continue
            if self.data.holds(snapshot.place):
                break  # and with it all data since then, and every later state
            snapshot.is_restart_only = True
            self._tell(
                "restart-only",
                f"{snapshot.key} can only be returned to by a restart: the data since then take more than "
                f"{self.data.budget_bytes} bytes",
            )

    def _holds(self, snapshot: Snapshot) -> bool:
        """Say whether the loop can return to a state without being left."""
        return self.re_enters and self.data.holds(snapshot.place)

    def _place_in(self, epoch: EpochData) -> Place:
        steps = epoch.steps_before + self._step() - epoch.first_step
        fetched = epoch.position - epoch.window
        return Place(epoch, epoch.window, fetched, epoch.window_number, steps, epoch.owed)

    def _accumulation(self) -> int:
        return int(self.trainer.args.gradient_accumulation_steps)

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

"""Returning to an earlier state inside of the training loop, exact to the bit, within seconds.

Whoever decides to return raises `RollBackTo` from anywhere inside an epoch. The state is put back and the epoch is
entered again with the very batches it was trained on since; then the loader's own iterator goes on where it stood.
There is no new optimizer, no beginning or end of training, nothing is tokenised or fetched again. A state of an earlier
epoch is returned to by running the rest of that epoch from what is kept, and then the later ones. Needs
`Trainer._run_epoch`, which transformers has since 5.3. Where that is missing, or the data are no longer kept, the request
leaves the loop, and `train()` is entered anew at the state (`MemoryRestart`).
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..trainer.moves import ReturnTo, RollBackTo
from ..trainer.wrapping import Wrapping
from .data_windows import Batches, DataWindows, EpochData, Place
from .guard_state import is_settled
from .memory_snapshots import MemorySnapshots, Snapshot, SnapshotDamagedError, oldest
from .old_loop import OldLoop
from .restart import MemoryRestart, Returning

if TYPE_CHECKING:
    from ..trainer.step_guard import StepGuard

logger = logging.getLogger("self_healing.rollback")

FROM_MEMORY = "<memory>"
"""Stands for a checkpoint where the loop wants to hear of one; nothing is ever looked for there."""
DATA_BUDGET_BYTES = 1 << 30
NEEDED = frozenset(
    {"epoch", "train_dataloader", "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch"}
)
"""What `_run_epoch` must take for an epoch to be entered in its middle."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What there is to say when a state is put back."""

    snapshot: Snapshot
    move: ReturnTo
    from_step: int
    repeats: bool
    """The first step afterwards is the one that it was, so that its loss is a test of the state."""


class RollbackLoop:
    """Takes states between steps, keeps the data since, and enters the epoch again when it is told to return."""

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
        self.restart = MemoryRestart(trainer)
        self.re_enters = self.is_possible(trainer)
        """The loop itself can take up an earlier state; else `train()` has to be entered anew."""
        self.old = None if self.re_enters else OldLoop(self)
        self.returns = 0
        """How often an earlier state was returned to."""
        self.lost_steps = 0
        """Steps that were trained once more because of it."""
        self.lost_seconds = 0.0
        """The time that they had taken the first time, with whatever else was done between them."""
        self.on_error: Callable[[Exception], ReturnTo | None] = lambda _error: None
        """Is asked about an exception inside an epoch; what it returns is returned to, else the exception goes on."""
        self.before_return: Callable[[], None] = lambda: None
        self.choose_instead: Callable[[str], str | None] = lambda _key: None
        """Is asked for the key of an older state where one turns out to be damaged."""
        self._tell = tell
        self._on_return = on_return
        self._epoch: EpochData | None = None

    # -- attaching -----------------------------------------------------------------------------------

    @staticmethod
    def is_possible(trainer: Any) -> bool:
        """Say whether this version of transformers runs its epochs where they can be entered again."""
        run_epoch = getattr(trainer, "_run_epoch", None)
        return run_epoch is not None and set(inspect.signature(run_epoch).parameters) >= NEEDED

    def attach(self, wrapping: Wrapping) -> None:
        """Stand around the epoch and around the fetching of data; the guard may do so before or afterwards."""
        if self.re_enters:
            wrapping.wrap(self.trainer, "_run_epoch", self._around_epoch)
        wrapping.wrap(self.trainer, "get_batch_samples", self._around_fetch)
        wrapping.wrap(self.trainer, "_load_rng_state", self._around_random_state)
        self.restart.attach(wrapping)

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
        self.old = None
        vars(self).clear()

    # -- what the run is asked for -------------------------------------------------------------------

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
        self._forget_what_nobody_returns_to(epoch)
        self._look_what_is_in_reach()
        return snapshot

    def is_in_reach(self, key: str) -> bool:
        """Say whether a state can be returned to, inside the loop or by entering `train()` anew."""
        snapshot = self.snapshots.get(key)
        if snapshot is None:
            return False
        return (self._epoch is not None and self._holds(snapshot)) or self.restart.reaches(snapshot)

    def enter_anew(self, move: ReturnTo) -> str | None:
        """Return what `train()` is to resume from in order to return to a state; None where that cannot be done."""
        snapshot = self.snapshots.get(move.key)
        while snapshot is not None and not snapshot.capture.copies.verify():
            other = self._instead_of(move, f"{snapshot.key} was changed in memory since it was taken")
            move = other or move
            snapshot = None if other is None else self.snapshots.get(other.key)
        if snapshot is None or not self.restart.reaches(snapshot):
            return None
        self.before_return()
        self.leave_out_after_restart(move.skip, move.skip_more)
        return self.restart.prepare(snapshot, move)

    def leave_out_after_restart(self, steps: Iterable[int], more: int) -> None:
        """Leave the data of steps and of some more out when training is entered anew before them."""
        self.data.leave_out_after_restart(steps, more=more * self._accumulation())

    # -- what the loop calls -------------------------------------------------------------------------

    def _around_epoch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def _run_epoch(*args: Any, **kwargs: Any) -> None:
            epoch = self._begin_epoch(dict(signature.bind(*args, **kwargs).arguments))
            try:
                self._run_epochs(original, epoch)
            finally:
                self._epoch = None

        return _run_epoch

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
            epoch = self._epoch
            if epoch is None:
                return original(epoch_iterator, *args, **kwargs)
            if not isinstance(epoch_iterator, Batches):
                epoch.live = epoch_iterator
                epoch_iterator = Batches(self.data, epoch, self.trainer)
            self.data.begin_window(epoch, self._step() + 1)
            self._forget_what_nobody_returns_to(epoch)
            fetched = original(epoch_iterator, *args, **kwargs)
            self.restart.has_fetched(epoch)
            if self.restart.returning is not None:
                self._go_on_at(self.restart.returning, epoch)
            self._look_what_is_in_reach()
            if self.old is not None:
                self.old.fetched(epoch, fetched[0])
            return fetched

        return get_batch_samples

    def _around_random_state(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _load_rng_state(checkpoint: Any) -> Any:
            # The generators were put back with everything else.
            return None if checkpoint == FROM_MEMORY else original(checkpoint)

        return _load_rng_state

    # -- epochs --------------------------------------------------------------------------------------

    def _begin_epoch(self, call: dict[str, Any]) -> EpochData:
        is_first = call["epoch"] == call["epochs_trained"]
        is_resumed = is_first and call["resume_from_checkpoint"] is not None and not self.trainer.args.ignore_data_skip
        before = call["steps_trained_in_current_epoch"] // self._accumulation() if is_resumed else 0
        return self.enter(call, before, is_first=is_first)

    def enter(self, call: dict[str, Any], steps_before: int, *, is_first: bool) -> EpochData:
        """Begin the data of an epoch, right before its loader is iterated over."""
        if (
            is_first and self.restart.entered_for is None
        ):  # `train()` was entered: other data, perhaps another optimizer
            self.end()
        elif is_first:
            self.data.begin()
            for snapshot in self.snapshots:
                snapshot.is_restart_only = True
        elif self._epoch is not None:
            self._epoch.is_over()
        epoch = self.data.begin_epoch(call, first_step=self._step(), steps_before=steps_before)
        epoch.read = steps_before * self._accumulation()
        epoch.loader = self.trainer.callback_handler.train_dataloader
        self.restart.epoch_begins(epoch)
        self._epoch = epoch
        return epoch

    def _run_epochs(self, original: Callable[..., Any], first: EpochData) -> None:
        """Run an epoch; after a return to an earlier one, that one from there on and all up to the newest."""
        epoch: EpochData | None = first
        enters_anew = begins = False
        while epoch is not None:
            self._epoch = epoch
            try:
                if begins:
                    self._begin_again(epoch)
                self._run(original, epoch, enters_anew=enters_anew)
            except RollBackTo as asked:
                epoch = self._return_to(asked.move)
                enters_anew, begins = True, False
                continue
            except Exception as error:
                answer = self.on_error(error)
                if answer is None:
                    raise
                try:
                    epoch = self._return_to(answer)
                except RollBackTo as unreached:
                    if self.is_in_reach(unreached.move.key):
                        raise  # `train()` is entered anew for it
                    raise error from None  # nobody outside has heard of ours
                enters_anew, begins = True, False
                continue
            epoch.is_over()
            if self.trainer.control.should_training_stop:
                return
            epoch, begins = self.data.epoch_after(epoch), True

    def _begin_again(self, epoch: EpochData) -> None:
        """Begin an epoch that follows one that was run again, as the loop does for each of them."""
        trainer = self.trainer
        trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
        epoch.first_step = self._step()
        if epoch.was_begun:
            epoch.rewind(0, silent_until=0)

    def _run(self, original: Callable[..., Any], epoch: EpochData, *, enters_anew: bool) -> None:
        if not enters_anew or not epoch.was_begun:
            original(**epoch.call)
            return
        done = epoch.steps_before + self._step() - epoch.first_step
        entering = Wrapping()
        call = {
            **epoch.call,
            "train_dataloader": _Again(Batches(self.data, epoch, self.trainer), entering),
            "epochs_trained": epoch.number,
            "steps_trained_in_current_epoch": done * self._accumulation(),
            "resume_from_checkpoint": FROM_MEMORY if done else None,
        }
        try:
            if done:
                self._prepare_to_enter(entering)
            original(**call)
        finally:
            entering.restore()

    def _prepare_to_enter(self, entering: Wrapping) -> None:
        """Have the loop take a place in its epoch for granted, instead of reading the data before it."""
        import transformers.trainer

        entering.replace(transformers.trainer, "skip_first_batches", lambda loader, _count: loader)
        entering.replace(self.trainer.args, "ignore_data_skip", False)

    # -- returning -----------------------------------------------------------------------------------

    def _return_to(self, move: ReturnTo) -> EpochData:
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
            return self._return_to(other)
        left_out = self.data.leave_out(place, move.skip, more=move.skip_more * self._accumulation())
        place.epoch.rewind(place.index, silent_until=place.index + place.fetched)
        self._has_returned(Arrival(snapshot, move, came_from, repeats=not move.skip))
        if left_out:
            logger.warning("%d batches are left out", left_out)
        return place.epoch

    def _go_on_at(self, returning: Returning, epoch: EpochData) -> None:
        """Put a state back after `train()` was entered anew for it, now that the data of its step were fetched again."""
        snapshot, move = returning.state, returning.move
        repeats = not move.skip and not self.trainer.args.ignore_data_skip
        self.snapshots.put_back(snapshot)
        self.restart.done()
        epoch.first_step = snapshot.step
        snapshot.place = self._place_in(epoch)
        snapshot.is_restart_only = not self.re_enters
        self._has_returned(Arrival(snapshot, move, returning.left_at, repeats))

    def _has_returned(self, arrival: Arrival) -> None:
        snapshot = arrival.snapshot
        self.returns += 1
        self.lost_steps += arrival.from_step - snapshot.step
        now = time.perf_counter()
        self.lost_seconds, snapshot.at_s = self.lost_seconds + now - snapshot.at_s, now
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


class _Again:
    """A loader for an epoch that is entered in its middle; where it is read, the loop is in and all is as before."""

    def __init__(self, batches: Batches, entering: Wrapping) -> None:
        self._batches = batches
        self._entering = entering

    def __iter__(self) -> Iterator[Any]:
        self._entering.restore()
        return self._batches

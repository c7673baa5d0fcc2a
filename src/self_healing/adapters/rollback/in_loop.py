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
from collections.abc import Callable, Iterator
from typing import Any

from ..run.moves import ReturnTo, RollBackTo
from ..wrapping import Wrapping
from .data_windows import DataWindows, EpochData
from .left_out import pass_by_what_was_left_out
from .old_loop import OldLoop
from .restart import MemoryRestart, Returning
from .state_returns import Arrival, StateReturns

logger = logging.getLogger("self_healing.rollback")

FROM_MEMORY = "<memory>"
"""Stands for a checkpoint where the loop wants to hear of one; nothing is ever looked for there."""
NEEDED = frozenset(
    {"epoch", "train_dataloader", "resume_from_checkpoint", "epochs_trained", "steps_trained_in_current_epoch"}
)
"""What `_run_epoch` must take for an epoch to be entered in its middle."""


class RollbackLoop(StateReturns):
    """Takes states between the steps of a Trainer, and enters its epoch again when it is told to return."""

    def __init__(self, trainer: Any, **how: Any) -> None:
        super().__init__(trainer, **how)
        self.restart: MemoryRestart = MemoryRestart(trainer)
        self.re_enters = self.is_possible(trainer)
        self.old = None if self.re_enters else OldLoop(self)

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

    # -- what the run is asked for -------------------------------------------------------------------

    def is_in_reach(self, key: str) -> bool:
        """Say whether a state can be returned to, inside the loop or by entering `train()` anew."""
        snapshot = self.snapshots.get(key)
        return super().is_in_reach(key) or (snapshot is not None and self.restart.reaches(snapshot))

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
        if self.restart.entered_for is None:  # else it knows where its data stood
            pass_by_what_was_left_out(epoch, self.data.left_out)
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
                self.on_epoch_over()
            except RollBackTo as asked:
                epoch = self.return_to(asked.move)
                enters_anew, begins = True, False
                continue
            except Exception as error:
                answer = self.on_error(error)
                if answer is None:
                    raise
                try:
                    epoch = self.return_to(answer)
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


class Batches(Iterator[Any]):
    """Iterates over an epoch: kept batches first, then live ones. Any number of them share the epoch's position."""

    def __init__(self, data: DataWindows, epoch: EpochData, trainer: Any) -> None:
        self.epoch = epoch
        self._data = data
        self._trainer = trainer

    def __next__(self) -> Any:
        return self._data.next_batch(self.epoch, int(self._trainer.state.global_step) + 1)


class _Again:
    """A loader for an epoch that is entered in its middle; where it is read, the loop is in and all is as before."""

    def __init__(self, batches: Batches, entering: Wrapping) -> None:
        self._batches = batches
        self._entering = entering

    def __iter__(self) -> Iterator[Any]:
        self._entering.restore()
        return self._batches

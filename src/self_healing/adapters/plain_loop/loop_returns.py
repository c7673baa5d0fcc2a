"""The data of a loop that takes its batches from us, and the states between its steps.

An epoch is one `for batch in run.batches(loader)`. After a return into an earlier one, the rest of that and all later ones
come out of the `for` that is running, so that what the loop does between epochs does not run again: what that has done to
the scheduler, the settings of the optimizer's groups and the random numbers is put back by us, and what it has frozen and
switched to evaluation or training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...tensors.random_state import RandomState
from ..rollback.data_windows import EpochData, Place
from ..rollback.left_state import LeftState
from ..rollback.memory_snapshots import Snapshot
from ..rollback.restart import EpochStart, NoRestart
from ..rollback.state_returns import StateReturns
from ..run.moves import ReturnTo
from ..step.update_numbers import UpdateNumbers
from ..step.window import Window
from .end_marks import EndMarks, blocks_of


@dataclass(frozen=True, slots=True, eq=False)
class Light:
    """What a loop changes besides weights and moments: nothing that takes time to keep."""

    random: RandomState
    scheduler: Any
    numbers: UpdateNumbers
    """A scheduler's state does not bring back what it has given to the groups."""
    blocks: int | None = None
    """Where accelerate stands in adding up gradients; None where the loop is not accelerate's."""

    @classmethod
    def of(cls, stand_in: Any) -> Light:
        """Take note of it."""
        scheduler = None if stand_in.lr_scheduler is None else dict(stand_in.lr_scheduler.state_dict())
        numbers = UpdateNumbers.of(stand_in.optimizer.param_groups)
        return cls(RandomState.capture(), scheduler, numbers, blocks_of(stand_in))

    def restore(self, stand_in: Any, *, with_random: bool = True) -> None:
        """Put it back."""
        if self.scheduler is not None:
            stand_in.lr_scheduler.load_state_dict(self.scheduler)
        self.numbers.put_back(stand_in.optimizer.param_groups)
        if self.blocks is not None:
            stand_in.accelerator.step = self.blocks
        if with_random:
            self.random.restore()


class Switches:
    """Which parameters of a model train, and which of its modules are in training: a loop sets both between epochs."""

    def __init__(self, model: Any) -> None:
        self._trains = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        self._modes = [(module, module.training) for module in model.modules()]

    def restore(self) -> None:
        """Set them as they were."""
        for parameter, trains in self._trains:
            parameter.requires_grad_(trains)
        for module, mode in self._modes:
            module.training = mode


@dataclass(frozen=True, slots=True, eq=False)
class Stood:
    """Where a loop stood before a step whose batch may have to be handed out again, after that was fetched."""

    place: Place
    light: Light


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """Where a loop goes on in the place of a process that is gone."""

    place: Place
    step: int
    arrive: Callable[[], None]
    """Puts back what its data and the code before them may have changed."""
    is_between: bool = False
    """All of that epoch was trained, and what the loop does behind it was done."""
    brings_data: bool = True
    """The first batch belongs to it: what is put back was taken when that had been fetched."""


class LoopRestart(NoRestart):
    """A loop that begins, in the place of a process that is gone."""

    def __init__(self, stand_in: Any) -> None:
        self._stand_in = stand_in
        self._left: LeftState | None = None
        self._light: Light | None = None
        self.entry: Entry | None = None
        """Where the loop goes on, until it is there."""

    @property
    def entered_for(self) -> LeftState | None:
        """What the loop goes on from, until its data have been brought there."""
        return self._left

    @property
    def left(self) -> LeftState | None:
        """The same."""
        return self._left

    def has_begun(self) -> bool:
        """Say that the loop begins anew; the step of the state counts from now on."""
        if self.entry is not None:
            self._stand_in.state.global_step = self.entry.step
        return False

    def prepare_for(self, left: LeftState, take_over: Callable[[LeftState], None]) -> str:
        """Have the loop go on at what another process has left, as soon as its data are there."""
        self._left = left
        self.entry = Entry(left.place, left.step, partial(self._take_over, left, take_over))
        return left.key

    def is_filled(self) -> None:
        """Take note of the rates that a state has brought: what the loop does before it is there may change them."""
        self._light = Light.of(self._stand_in)

    def _take_over(self, left: LeftState, take_over: Callable[[LeftState], None]) -> None:
        if self._light is not None:
            self._light.restore(self._stand_in, with_random=False)
        take_over(left)

    def arrived(self) -> None:
        """Put back what is left to be put back: the loop is there."""
        entry = self.entry
        assert entry is not None, "somebody goes on"
        self.cancel()
        entry.arrive()

    def cancel(self) -> None:
        """Forget what was under way."""
        self._left = self.entry = None


class LoopReturns(StateReturns):
    """Hands out the batches of a loop, and goes back to earlier ones."""

    def __init__(self, trainer: Any, **how: Any) -> None:
        super().__init__(trainer, **how)
        self.restart: LoopRestart = LoopRestart(trainer)
        self.epochs = 0
        """Epochs that were begun."""
        self.is_between = True
        """The loop is between two epochs."""
        self.waiting: Callable[[], list[Window]] = list
        """Returns the steps that are not known to be applied yet."""
        self._ends = EndMarks(trainer)
        self._blocks: dict[str, int | None] = {}
        """Where accelerate stood at each state."""

    # -- epochs --------------------------------------------------------------------------------------

    @property
    def epoch_number(self) -> int:
        """Which epoch is trained, counted from zero."""
        return self._epoch.number if self._epoch is not None else 0

    @property
    def is_in_epochs(self) -> bool:
        """Whether the loop takes its batches from us."""
        return self._epoch is not None

    def enter(self, loader: Any) -> bool:
        """Begin an epoch; False where an earlier process has trained it."""
        number, self.epochs = self.epochs, self.epochs + 1
        entry = self.restart.entry
        if entry is not None and number < entry.place.epoch.number + entry.is_between:
            return False
        if entry is not None and entry.is_between:  # from here on nothing is different
            self.restart.arrived()
            entry = None
        epoch = self.data.begin_epoch({"epoch": number}, first_step=self._step(), steps_before=0)
        epoch.loader = loader
        if entry is None:
            epoch.start = EpochStart.of(loader)
        else:
            place = entry.place
            epoch.start, epoch.owed, epoch.steps_before = place.epoch.start, place.owed, place.steps
            if epoch.start is not None:
                epoch.start.restore(loader)
        epoch.live = _reading(loader)
        epoch.between = partial(self._put_back_between, Light.of(self.trainer), Switches(self.trainer.model))
        self._epoch, self.is_between = epoch, False
        if entry is not None:
            self.data.pass_by(epoch, entry.place.number or 0)
            if not entry.brings_data:
                self.restart.arrived()
        return True

    def _put_back_between(self, light: Light, switches: Switches) -> None:
        light.restore(self.trainer)
        switches.restore()

    def leave(self) -> None:
        """End an epoch: all of it was trained, or the loop was left."""
        if self._epoch is not None:
            self._epoch.is_over()
        self._ends.left()
        self.is_between = True

    def next_epoch(self) -> bool:
        """Go on with the epoch that followed the one at hand before a return; False where none did."""
        assert self._epoch is not None, "an epoch is at hand"
        following = self.data.epoch_after(self._epoch)
        if following is None:
            return False
        self._epoch.is_over()
        if following.between is not None:
            following.between()
        following.first_step = self._step()
        following.rewind(0, silent_until=0)
        self._epoch = following
        return True

    # -- batches -------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin to hand out the data of a step."""
        epoch = self._at_hand()
        self.data.begin_window(epoch, self._step() + 1)
        self._forget_what_nobody_returns_to(epoch)

    def fetch(self) -> Any:
        """Return the next batch; end as the loader ends."""
        epoch = self._at_hand()
        at, read = epoch.position, epoch.read
        batch = self.data.next_batch(epoch, self._step() + 1)
        self._ends.handed_out(epoch, at, is_new=epoch.read > read)
        if self.restart.entry is not None:
            self.restart.arrived()
            epoch.first_step = self._step()
        self._look_what_is_in_reach()
        return batch

    def stands(self) -> Stood:
        """Return where the loop stands, with the data of its next step fetched."""
        return Stood(self._place_in(self._at_hand()), Light.of(self.trainer))

    def place_now(self) -> Place:
        """Return where the data stand between two steps."""
        epoch = self._at_hand()
        return self.data.place_before_the_next(epoch, epoch.steps_before + self._step() - epoch.first_step)

    # -- going back ----------------------------------------------------------------------------------

    def return_to(self, move: ReturnTo) -> EpochData:
        """Put a state and the data since back."""
        self._epoch = super().return_to(move)
        newest = list(self.snapshots)[-1]  # those after it are forgotten
        if self._blocks.get(newest.key) is not None:
            self.trainer.accelerator.step = self._blocks[newest.key]
        return self._epoch

    def take(self) -> Snapshot | None:
        """Set the state between two steps aside."""
        snapshot = super().take()
        if snapshot is not None:
            kept = {each.key for each in self.snapshots}
            self._blocks = {key: blocks for key, blocks in self._blocks.items() if key in kept}
            self._blocks[snapshot.key] = blocks_of(self.trainer)
        return snapshot

    def hand_out_again(self, window: Window, *, without: bool) -> None:
        """Give the batch of a step once more, and those after it; or others instead of that one."""
        stood: Stood = window.stood
        place = stood.place
        self.trainer.state.global_step = window.step
        if self.guard is not None:
            self.guard.buffers.put_back(window.buffers)
        if without:
            self.data.leave_out(place, {window.step + 1})
        place.epoch.rewind(place.index, silent_until=place.index + (0 if without else place.fetched))
        self._epoch = place.epoch
        stood.light.restore(self.trainer)

    def _forget_what_nobody_returns_to(self, epoch: EpochData) -> None:
        stood = [window.stood.place for window in self.waiting() if window.stood is not None]
        if not stood or any(not each.is_restart_only for each in self.snapshots):
            super()._forget_what_nobody_returns_to(epoch)
        else:  # no state is kept, and a step may have to be handed out again
            self.data.forget_before(stood[0])

    def _at_hand(self) -> EpochData:
        assert self._epoch is not None, "batches are handed out inside of an epoch"
        return self._epoch


def _reading(loader: Any) -> Iterator[Any]:
    """Iterate over a loader so that it can be closed, and its workers with it."""
    iterator = iter(loader)

    def batches() -> Iterator[Any]:
        yield from iterator

    return batches()

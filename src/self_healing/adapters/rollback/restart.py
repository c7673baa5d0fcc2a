"""Returning to a state in memory by entering `train()` anew, where the loop cannot take it up where it stands.

Before transformers 5.3 there is no other way; later it is needed where the data since a state are no longer kept, or the
loader has failed. The trainer is told to resume from a folder that holds only how far the run was: it makes its loader,
brings it to that place, and when it has fetched the data of the first step, the state is put back as it was taken.
Nothing of it goes through the disk, so that what checkpoints leave out is put back as well.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.run_directory import healing_folder
from ..wrapping import Wrapping

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState
    from ..run.moves import ReturnTo
    from .data_windows import EpochData, Place
    from .left_state import LeftState
    from .memory_snapshots import Snapshot

NEEDED = ("_load_from_checkpoint", "_load_rng_state", "get_batch_samples", "set_initial_training_values")
FOLDER = "restart"
"""Below the healing directory, where nobody looks for checkpoints; gone as soon as it was used.

One of each process: another may not have read its own yet.
"""
STATE = "trainer_state.json"
"""Where transformers reads how far a run was."""


@dataclass(frozen=True, slots=True, eq=False)
class EpochStart:
    """What the order of an epoch's data depends on besides the data: where random generators stood before it."""

    random_state: RandomState
    generators: dict[str, Any]
    """Generators of the loader and its samplers, by the way to them: some are seeded once and go on from epoch to epoch."""

    plain: dict[str, Any] = field(default_factory=dict)
    """The same as plain JSON, once it was asked for."""

    @classmethod
    def of(cls, loader: Any) -> EpochStart:
        """Take it right before the loader is iterated over."""
        from ...tensors.random_state import RandomState

        found = {way: generator.get_state() for way, generator in _generators(loader)}
        return cls(RandomState.capture(), found)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EpochStart:
        """Take what `to_plain` returned."""
        from ...tensors.random_state import RandomState, from_text

        generators = {str(way): from_text(text) for way, text in plain["generators"].items()}
        return cls(RandomState.from_state(plain["random"]), generators)

    def to_plain(self) -> Mapping[str, Any]:
        """Return it as plain JSON."""
        from ...tensors.random_state import as_text

        if not self.plain:
            generators = {way: as_text(state) for way, state in self.generators.items()}
            self.plain.update(random=self.random_state.numbers(), generators=generators)
        return self.plain

    def restore(self, loader: Any) -> None:
        """Put it back for a loader of the same kind."""
        for way, generator in _generators(loader):
            if way in self.generators:
                generator.set_state(self.generators[way])
        self.random_state.restore()


@dataclass(frozen=True, slots=True, eq=False)
class Returning:
    """A state of this process that `train()` is being entered anew for."""

    state: Snapshot
    move: ReturnTo
    left_at: int
    """The step that was reached when training was left."""


@dataclass(frozen=True, slots=True, eq=False)
class TakingOver:
    """A state that another process has left, for which `train()` is being entered."""

    state: LeftState
    take_over: Callable[[LeftState], None]


class NoRestart:
    """For a loop that nobody but its owner can enter."""

    path = ""
    """What the loop is told to resume from."""
    steps_per_epoch = 0
    """As the loop counts them; 0 before it has, and where it does not."""

    @property
    def entered_for(self) -> Snapshot | LeftState | None:
        """What the loop is being entered anew for."""
        return None

    @property
    def left(self) -> LeftState | None:
        """Where training is about to go on in the place of a process that is gone."""
        return None

    def has_begun(self) -> bool:
        """Say whether the loop was entered for a state of its own."""
        return False

    def reaches(self, _snapshot: Snapshot) -> bool:
        """Say whether a state can be returned to in this way."""
        return False

    def prepare_for(self, left: LeftState, take_over: Callable[[LeftState], None]) -> str:
        """Return what to resume from in order to go on at what another process has left."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Forget what was under way."""


class MemoryRestart(NoRestart):
    """Enters one trainer's `train()` anew; the caller leaves it and calls it again."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._entering_for: Returning | TakingOver | None = None
        """Where training is about to go on; None while nothing is under way."""
        self.path = ""  # stays when the trainer has resumed from it, for the loop may still ask for random numbers
        self._entering = Wrapping()
        self._iterates_late = False
        """The trainer's own loader has not been iterated over since `train()` was entered: the first epoch had another."""

    @staticmethod
    def is_possible(trainer: Any) -> bool:
        """Say whether the trainer has all that is needed."""
        return all(hasattr(trainer, name) for name in NEEDED)

    def attach(self, wrapping: Wrapping) -> None:
        """Have nothing loaded where a state is put back from memory."""
        if self.is_possible(self.trainer):
            wrapping.wrap(self.trainer, "set_initial_training_values", self._around_counting)
            wrapping.wrap(self.trainer, "_load_from_checkpoint", self._around_loading)
            wrapping.wrap(self.trainer, "_load_rng_state", self._around_loading)

    def reaches(self, snapshot: Snapshot) -> bool:
        """Say whether a state can be returned to in this way."""
        return self.steps_per_epoch > 0 and snapshot.place.number is not None

    def prepare(self, snapshot: Snapshot, move: ReturnTo) -> str:
        """Return what `train()` is to resume from in order to go on at a state."""
        trainer = self.trainer
        self.cancel()
        left_at = int(trainer.state.global_step)
        self._write_how_far(snapshot.place, self.steps_per_epoch)
        self._entering_for = Returning(snapshot, move, left_at)
        if getattr(trainer, "model_init", None) is not None:  # it would make another model, and an optimizer for it
            self._entering.replace(trainer, "model_init", None)
        return self.path

    def prepare_for(self, left: LeftState, take_over: Callable[[LeftState], None]) -> str:
        """Return what `train()` is to resume from in order to go on at what another process has left.

        When the data of its next step are there, it is taken over.
        """
        self.cancel()
        self._write_how_far(left.place, left.steps_per_epoch)
        self._entering_for = TakingOver(left, take_over)
        return self.path

    def _write_how_far(self, place: Place, steps_per_epoch: int) -> None:
        state = copy.copy(self.trainer.state)
        # Of a stream that ends the trainer would not find the epoch by the step; the state that is put back has the true one.
        state.global_step = place.epoch.number * steps_per_epoch + place.steps
        state.log_history, state.stateful_callbacks = [], {}
        args = self.trainer.args
        for name in ("logging_steps", "eval_steps", "save_steps", "train_batch_size"):  # they are compared with these
            setattr(state, name, getattr(args, name))
        self.path = _write(state, healing_folder(args.output_dir) / f"{FOLDER}-{args.process_index}")
        if place.epoch.start is not None:  # a sampler may take its seed from the generators when it is made
            place.epoch.start.random_state.restore()

    @property
    def entered_for(self) -> Snapshot | LeftState | None:
        """What `train()` is being entered anew for."""
        return None if self._entering_for is None else self._entering_for.state

    @property
    def returning(self) -> Returning | None:
        """The return that `train()` is being entered anew for."""
        return self._entering_for if isinstance(self._entering_for, Returning) else None

    @property
    def left(self) -> LeftState | None:
        """Where training is about to go on in the place of a process that is gone."""
        return self._entering_for.state if isinstance(self._entering_for, TakingOver) else None

    def has_begun(self) -> bool:
        """Say whether `train()` was entered for a state of its own; the state's step counts from now on.

        The loop knows its epoch by now.
        """
        entered_for = self.entered_for
        if entered_for is not None:
            self.trainer.state.global_step = entered_for.step
        return self.returning is not None

    def epoch_begins(self, epoch: EpochData) -> None:
        """Have an epoch read its data as it did the first time, or note how it does."""
        entered_for = self.entered_for
        # Workers that persist are started when a loader is first iterated over, which draws a random number; an epoch that
        # is entered in the middle has a loader of its own, also where a checkpoint is resumed from.
        persist = bool(getattr(epoch.loader, "persistent_workers", False))
        if entered_for is None:
            epoch.start = EpochStart.of(epoch.loader)
            epoch.forgets_iterating, self._iterates_late = self._iterates_late, persist and epoch.steps_before > 0
            return
        place = entered_for.place
        epoch.start, epoch.owed = place.epoch.start, place.owed
        if not self.trainer.args.ignore_data_skip:  # else the user wants no data to be passed over
            epoch.wanted_from = place.number or 0
        if epoch.start is not None:
            epoch.start.restore(epoch.loader)
        self._iterates_late = place.steps > 0 and persist

    def has_fetched(self, epoch: EpochData) -> None:
        """Undo that workers were started by the first fetch of an epoch: they would have been in an earlier one.

        What another process has left is taken over here: the data of its next step are there.
        """
        if epoch.forgets_iterating and epoch.start is not None:
            epoch.forgets_iterating = False
            epoch.start.random_state.restore()
        entering = self._entering_for
        if isinstance(entering, TakingOver):
            entering.take_over(entering.state)
            epoch.first_step = entering.state.step
            self.done()

    def done(self) -> None:
        """The state is put back: let whoever asks the trainer find the same objects, and clean up."""
        trainer = self.trainer
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(trainer.callback_handler, name, getattr(trainer, name))
        path = self.path
        self.cancel()
        self.path = path

    def cancel(self) -> None:
        """Forget what was under way."""
        self._entering.restore()
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)
        self._entering_for = None
        self.path = ""

    def _around_counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_initial_training_values(*args: Any, **kwargs: Any) -> Any:
            values = original(*args, **kwargs)
            self.steps_per_epoch = int(values[1])  # num_update_steps_per_epoch, in all versions
            return values

        return set_initial_training_values

    def _around_loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
            return None if self.path and checkpoint == self.path else original(checkpoint, *args, **kwargs)

        return load


def _write(state: Any, folder: Path) -> str:
    """Write how far the run was, into the run's directory or, where that cannot be written to, elsewhere."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state.save_to_json(str(folder / STATE))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="self-healing-"))
        state.save_to_json(str(folder / STATE))
    return str(folder)


def _generators(loader: Any, way: str = "loader", depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield the random generators of a loader and of its samplers."""
    import torch

    own = getattr(loader, "generator", None)
    if isinstance(own, torch.Generator):
        yield way, own
    for name in ("batch_sampler", "sampler"):
        inner = getattr(loader, name, None)
        if inner is not None and inner is not loader and depth:
            yield from _generators(inner, f"{way}.{name}", depth - 1)

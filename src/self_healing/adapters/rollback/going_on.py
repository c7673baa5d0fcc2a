"""From where a training goes on: the newest intact state of its run, in shared memory or on disk.

A run that was killed, or whose machine was taken away, is gone on with by itself: the same script is started again. Where a
state turns out not to fit, the next one is tried; nothing of the trainer was touched by then.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError
from ...core.failure import Effect
from ...core.run_directory import launch_of, ledger_path
from ...snapshots.manifest import step_of
from ...snapshots.resume import AUTO, Chosen, checkpoints_in, choose, must_load, resolve
from ...snapshots.shared_folder import run_name
from ...snapshots.shared_reader import RefusedState, iter_states
from ...snapshots.unfinished import bring_back, remove_what_was_left
from ..ending.last_attempt import LastAttempt, last_attempt, that_tells
from ..engines import Surroundings
from ..ranks.agreed_checkpoint import agreed_checkpoint
from ..run.data_facts import data_facts, differences, recipe_differences
from .left_state import LeftState, StateDoesNotFitError, StateLostError

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ..run.session import Session

Wanted = str | bool | Path | None


class GoingOn:
    """What one `train()` may go on from, the newest first."""

    def __init__(
        self, trainer: Any, config: HealingConfig, wanted: Wanted, surroundings: Surroundings | None = None
    ) -> None:
        """Look for what there is.

        Raises:
            ConfigError: a path that was asked for cannot be resumed from, or a run cannot be gone on with by itself.

        """
        args = trainer.args
        bring_back(args.output_dir)
        self._trainer = trainer
        self._args = args
        self._wanted = wanted
        self._model_only = bool(getattr(args, "save_only_model", False))
        self._before = that_tells(last_attempt(ledger_path(args.output_dir, args.process_index)))
        self.passed_over: list[str] = []
        """States in shared memory that are not used, and why."""
        can_go_on = _can_go_on(trainer, surroundings or Surroundings(trainer))
        self._is_by_itself = wanted is None and can_go_on and _was_cut_short(self._before)
        is_tried_again = wanted is None and can_go_on and _is_tried_again(trainer, self._before)
        self._is_automatic = self._is_by_itself or is_tried_again or wanted is True or wanted == AUTO
        self._may_share = config.shared_memory and config.snapshot_memory_fraction > 0 and int(args.world_size) == 1
        nobody_asked = self._is_by_itself or is_tried_again
        self._run = self._before if nobody_asked else None
        """The run that is gone on with by itself: what it has not written is another one's."""
        self._since_s = self._run.run_began_s if self._run is not None else 0.0
        self.changed = differences(self._before.facts, data_facts(trainer)) if self._before is not None else []
        self._otherwise = recipe_differences(self._before.facts, trainer) if self._before is not None else []
        self._disk: Chosen | None = None
        if self._is_automatic:
            self._left = self._left_states()
            self._next = next(self._left, None)
            if self._is_by_itself and self.changed and (self._next is not None or self._on_disk().path is not None):
                raise ConfigError(self._cannot_go_on("; ".join(self.changed)))
            if self._is_by_itself and self._next is None and self._on_disk().path is None:
                further = self._chosen(None).path
                if further is not None:
                    because = f"max_steps is {self._steps()}, and {further.name} holds more steps already"
                    raise ConfigError(self._cannot_go_on(because))
        else:
            self._left, self._next = iter(()), None
            own = {"key": "resume", "writer": "guard()"} if hasattr(trainer, "resumes_by") else {}
            self._disk = resolve(wanted, args.output_dir, model_only=self._model_only, **own)

    @property
    def resumes(self) -> bool:
        """Whether there is something to go on from."""
        return self._next is not None or self._on_disk().path is not None

    @property
    def starts_over(self) -> bool:
        """Whether the user has said that what is there is not to be used."""
        return self._wanted is False

    # -- entering ------------------------------------------------------------------------------------

    def begin(self, session: Session) -> str | None:
        """Return what `train()` is to resume from, None for the start; say so in the ledger."""
        session.rollback.open_shared(starts_over=self.starts_over)
        if int(self._args.process_index) == 0:
            remove_what_was_left(self._args.output_dir)
        if self._wanted is False or (self._wanted is None and not self._is_automatic):
            return None
        if self._is_automatic and self.resumes:
            self._keep_halved(session)
        return self._enter(session)

    def _keep_halved(self, session: Session) -> None:
        """Begin with the batch that the last attempt has come to: memory is as short, and to find out costs a recovery."""
        halvings = self._before.halvings if self._before is not None and not self.changed else 0
        if not halvings or session.config.settings().max_effect < Effect.TIME:
            return
        session.desk.learn(data_facts(self._trainer))  # the first of an attempt are its user's
        said = session.abilities.take_half_batches(halvings)
        session.note(
            "batch-still-halved",
            f"memory was short in the last attempt, and its batch is kept to: {said}; a checkpoint that is named is gone "
            "on from with the batch of the arguments",
        )

    def instead(self, session: Session, error: StateDoesNotFitError) -> str | None:
        """Return what to resume from in the place of a state that does not fit."""
        if self._next is not None:
            self.passed_over.append(f"{self._next.key}: {error}")
            self._next = next(self._left, None)
        if isinstance(error, StateLostError):
            self._next = None  # what comes next must bring all weights
        if (
            self._next is None
            and self._on_disk().path is None
            and (self._is_by_itself or isinstance(error, StateLostError))
        ):
            raise ConfigError(self._cannot_go_on(str(error))) from error
        return self._enter(session)

    def _cannot_go_on(self, because: str) -> str:
        starts_over = getattr(self._trainer, "starts_over_by", "resume_from_checkpoint=False")
        return (
            f"the run in {self._args.output_dir} was cut short after step {self._step_before()} and cannot be gone on with: "
            f"{because}. Put that back to go on, {starts_over} to start over, or name a checkpoint to go on "
            "from it all the same."
        )

    def _enter(self, session: Session) -> str | None:
        left, newest = self._next, self._newest_folder()
        disk = self._on_disk() if left is None or newest > left.step else None
        if left is not None and (disk is None or disk.path is None or disk.is_undone or (disk.step or 0) <= left.step):
            others = [*self.passed_over, *self._newer_on_disk(left), *self._otherwise]
            session.note("resuming", "; ".join([self._told(left), *others]), level=self._level(is_as_wanted=not others))
            session.abilities.own_checkpoints.goes_on_at(left.step, since_s=self._since_s)
            return session.rollback.go_on_at(left)
        disk = self._on_disk()
        told = [str(disk), *self.passed_over, *self.changed, *(self._otherwise if disk.path is not None else ())]
        if self._is_automatic and 0 < self._steps() <= (disk.step or 0) and session.rollback.trains_no_step_too_many():
            told.append(f"it holds all {self._steps()} steps that are asked for, and none is trained")
        is_as_wanted = disk.is_as_wanted and len(told) == 1
        session.note("resuming", "; ".join(told), level=self._level(is_as_wanted=is_as_wanted))
        if disk.path is None:
            return None
        session.abilities.own_checkpoints.goes_on_from(disk.path, since_s=self._since_s)
        if session.checkpoints is not None and session.checkpoints.together.is_writer:
            session.checkpoints.disk.resumed(disk.path)
        return str(disk.path)

    def _level(self, *, is_as_wanted: bool) -> int:
        return logging.INFO if is_as_wanted and self._wanted is not None else logging.WARNING  # nobody has asked for it

    def _told(self, left: LeftState) -> str:
        said = (
            f"training goes on after step {left.step} from shared memory, where the last attempt has left its state "
            f"{max(0.0, time.time() - left.created_s):.0f} s ago"
        )
        if self._step_before() > left.step:
            said += f", and has trained up to step {self._step_before()} at least"
        return said

    def _newer_on_disk(self, left: LeftState) -> list[str]:
        """Return what was passed over on disk for an older state of memory, where the disk was looked at."""
        newer = () if self._disk is None else self._disk.passed_over
        return [f"passed over: {each}" for each in newer if (step_of(each.folder) or 0) > left.step]

    def _step_before(self) -> int:
        return 0 if self._before is None else self._before.last_step

    # -- looking -------------------------------------------------------------------------------------

    def _left_states(self) -> Iterator[LeftState]:
        """Yield the states in shared memory that can be understood, the newest first."""
        args = self._args
        states = iter_states(run_name(args.output_dir, int(args.process_index))) if self._may_share else ()
        for state in states:
            if isinstance(state, RefusedState):
                self.passed_over.append(str(state))
                continue
            if state.index.created_s < self._since_s:
                self.passed_over.append(f"{state.file} is another run's")
                continue
            try:
                yield LeftState(state)
            except StateDoesNotFitError as error:
                self.passed_over.append(f"{state.file}: {error}")

    def _newest_folder(self) -> int:
        try:
            newest = checkpoints_in(self._args.output_dir)[:1]
        except OSError:
            return 0
        return (step_of(newest[0]) or 0) if newest else 0

    def _on_disk(self) -> Chosen:
        if self._disk is None:  # a checkpoint is read from end to end: not before it is needed
            last = self._steps() if self._is_by_itself and self._steps() > 0 else None
            # From a checkpoint of the last step a trainer of old would train one more: rather the one before is taken.
            self._disk = self._chosen(last) if int(self._args.world_size) == 1 else agreed_checkpoint(self._chosen)
            if self._disk.path is None and last is not None:
                self._disk = self._chosen(last + 1)
            must_load(self._disk)
        return self._disk

    def _steps(self) -> int:
        """Return how many steps are asked for; none where epochs are."""
        return int(self._args.max_steps)

    def _chosen(self, before_step: int | None) -> Chosen:
        from ...tensors.finite_at_first import never_finite

        return choose(
            self._args.output_dir, before_step, finite=True, model_only=self._model_only,
            never_finite=never_finite(self._trainer.model),
            why_not=None if self._run is None else self._run.why_not_its,
        )  # fmt: skip


def chosen_where_nothing_is_healed(trainer: Any, wanted: Wanted) -> Chosen | None:
    """Return the checkpoint that "auto" and True mean, by reading alone; None where something else was asked for.

    A stock Trainer knows no "auto", takes a damaged checkpoint for True, and raises where there is none. A script that
    heals must run as well where healing is switched off.
    """
    if wanted is not True and wanted != AUTO:
        return None
    from ...tensors.finite_at_first import never_finite

    args, masks = trainer.args, never_finite(trainer.model)
    model_only = bool(getattr(args, "save_only_model", False))
    return resolve(wanted, args.output_dir, model_only=model_only, never_finite=masks)


def _was_cut_short(before: LastAttempt | None) -> bool:
    """Say whether nobody wanted the last attempt to end."""
    return before is not None and before.was_cut_short


def _is_tried_again(trainer: Any, before: LastAttempt | None) -> bool:
    """Say whether a supervisor starts a command once more that has trained on the same data here: it is to go on.

    It has looked at how the attempt ended, and may have changed what had to be changed.
    """
    if before is None or (launch_of(os.environ) or 1) == 1:
        return False
    now = data_facts(trainer)
    return all(before.facts.get(name) == now.get(name) for name in ("records", "data"))


def _can_go_on(trainer: Any, surroundings: Surroundings) -> bool:
    """Say whether one process alone decides; several would each choose for themselves."""
    return int(trainer.args.world_size) == 1 and not surroundings.only_measures

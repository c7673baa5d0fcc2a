"""What a guarded training does at each step and at its ends, whoever's loop it is: read, make up, judge, take states."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.failure import Effect, Mode
from ...core.goodput import Spending
from ...core.notes import SAVED
from ...core.run_directory import healing_folder
from ..data.bad_rows import BadRows
from ..data.quarantine import Limit
from ..data.trainer_data import TrainerData
from ..ending.grace import GraceWatch
from ..ending.in_trouble import trouble_at_the_end
from ..ending.interrupts import interrupts_of, nobody_listens
from ..ending.leaving import emergency_checkpoint, leave_at_once, secure_in_time
from ..ending.sick_last import sick_last_checkpoint
from ..ending.unwritten import unwritten_checkpoints
from ..memory.memory_care import MemoryCare, why_whole
from ..rollback.checkpoint_care import CheckpointCare
from ..step.examination import Examiner
from ..step.make_up import AppliedStep
from ..step.trl_counters import generates_for_several_steps
from ..step.window import Window
from ..wrapping import Wrapping
from .log_figures import LogFigures
from .reflexes import WITH_OTHER_DATA
from .reflexes import made_up as made_up_reflex
from .reported_checkpoints import report_checkpoint
from .run_figures import RunFigures
from .step_intake import StepIntake
from .step_profile import StepProfile

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ...tensors.finite_at_first import FiniteAtFirst
    from ..ending.interrupts import Interrupts
    from ..engines import Surroundings
    from ..ranks.session_ranks import SessionRanks
    from ..rollback.rollback_care import RollbackCare
    from ..rollback.state_returns import Arrival
    from ..step.step_guard import StepGuard
    from ..step.step_reading import StepReading
    from .abilities import TrainerAbilities
    from .moves import PendingMove
    from .run_desk import RunDesk
    from .time_spent import TimeSpent


class Session:
    """One guarded training; who makes it puts its parts together, in the order of the methods below."""

    trainer: Any
    config: HealingConfig
    mode: Mode
    spent: TimeSpent
    surroundings: Surroundings
    guard: StepGuard
    rollback: RollbackCare
    abilities: TrainerAbilities
    pending: PendingMove
    desk: RunDesk
    memory: MemoryCare
    checkpoints: CheckpointCare | None
    data: TrainerData
    interrupts: Interrupts
    grace: GraceWatch
    interrupted_by: signal.Signals | None = None
    answered: Exception | None = None
    """An exception that was looked at before it left the loop."""
    figures: RunFigures
    profile: StepProfile
    log_figures: LogFigures
    intake: StepIntake
    ranks: SessionRanks
    """The other processes, where there are any."""
    note: Any
    _examiner: Examiner
    _at_first: FiniteAtFirst | None = None
    began_broken = False
    """Whether the weights were not finite before the first step, which was told."""
    _step_began: float
    _step_time_s = 0.0
    _found_unsound = False
    _saved_steps: set[int]
    """Checkpoints of this training; others in the same folder may be another run's."""
    _changes: Wrapping

    # -- making ------------------------------------------------------------------------------------

    def _set_guard(self, guard: StepGuard) -> None:
        """Take the guard of the steps, and tell it what the user allows."""
        self.guard = guard
        guard.making_up.on_unsound = self._examine
        guard.making_up.may_replace = self._may_change
        guard.lets_through = self.config.nan_action == "warn"
        self._examiner = Examiner(self.trainer)

    def _set_desk(self, desk: RunDesk) -> None:
        """Take the desk, and have told there what becomes of moves and what there is to remark."""
        self.desk = desk
        self.pending.tell, self.pending.step = desk.tell_of_move, self._step
        self.note = self.abilities.note = desk.note

    def _make_care(self, *, leaves_rows_out: bool, keeps_checkpoints: bool, **of_data: Any) -> None:
        """Make what looks after memory, checkpoints, signals and data."""
        trainer, config, acts = self.trainer, self.config, self.mode is Mode.HEAL
        folder = healing_folder(trainer.args.output_dir)
        self.memory = MemoryCare(
            trainer, folder, on_reflex=self.desk.reflex, note=self.note, whole_because=why_whole(config)
        )
        micro_batches = self.memory.micro_batches
        self.guard.retry = micro_batches if acts and config.oom_action != "raise" else None
        self.abilities.why_whole = micro_batches.why_whole
        self.checkpoints = None
        if keeps_checkpoints:
            self.checkpoints = CheckpointCare(trainer, self.desk, folder, self.weights_are_finite, self.guard)
        self.interrupts = interrupts_of(config, trainer.args)
        self.grace = GraceWatch(config.grace_seconds, partial(secure_in_time, self), partial(leave_at_once, self))
        self.data = TrainerData(
            trainer, limit=Limit(fraction=config.quarantine_fraction, records=config.quarantine_records),
            backoff_base_s=config.backoff_base_s, max_effect=config.settings().max_effect if acts else Effect.NOTHING,
            tell=self.note, on_reflex=self.desk.reflex, interrupts=self.interrupts, **of_data,
        )  # fmt: skip
        if leaves_rows_out and self.data.records.leaves_out:
            self.guard.bad_rows = BadRows(trainer, self.data.records.rows_raised, self.guard.making_up)

    def _make_figures(self) -> None:
        """Make what counts, times and takes in the steps."""
        trainer = self.trainer
        self._changes = Wrapping()
        self.figures = RunFigures(self)
        # One process is enough: all would write to the same files.
        steps = self.config.profile_steps if trainer.args.process_index == 0 else ()
        self.profile = StepProfile(steps, healing_folder(trainer.args.output_dir))
        self.log_figures = LogFigures(trainer, self.guard, self.rollback.figures, self.spent.goodput)
        self._step_began = time.perf_counter()
        self.intake = StepIntake(self)
        self._saved_steps = set()

    @property
    def _may_change(self) -> bool:
        """Whether the user allows the recipe to be changed."""
        return self.config.settings().max_effect is Effect.RECIPE

    # -- signals and the end ------------------------------------------------------------------------

    def _listen(self) -> None:
        """Hear of signals from now on."""
        self.interrupts.install()
        self.interrupts.on_signal = self.grace.came
        self.grace.begin(frozenset(number for number in self.interrupts.ending if number != signal.SIGINT))

    def _listen_no_more(self) -> None:
        self.grace.end()
        self.interrupts.restore()
        self.interrupts.on_signal, self.interrupts.while_waiting = nobody_listens, nullcontext

    def _write_end(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended, and what is missing from it."""
        not_listed = self.data.records.not_listed()
        if not_listed is not None:
            self.note("rows-not-listed", not_listed)
        if self.checkpoints is not None and exit_reason == "completed":
            self.checkpoints.settle()
        unwritten = unwritten_checkpoints(self)
        if unwritten is not None:
            self.note("checkpoints-not-written", unwritten.told, level=logging.ERROR)
        sick = sick_last_checkpoint(self) if exit_reason == "completed" else None
        if sick is not None:
            self.note("last-checkpoint-sick", sick)
        trouble = trouble_at_the_end(self, is_said=sick is not None) if exit_reason == "completed" else None
        if trouble is not None:
            self.note("ended-in-trouble", trouble)
        self.rollback.ended(exit_reason, is_unsaved=unwritten is not None and unwritten.is_unsaved)
        self.spent.account.steps_over()
        self.spent.tell(self.desk)
        self.desk.ended(exit_reason, error, self._counted())

    def _counted(self) -> dict[str, float]:
        """Return the figures that a postmortem holds besides the last metrics."""
        return {**self.log_figures.figures(), **self.memory.figures(), **self.figures_of_saving()}

    # -- steps ---------------------------------------------------------------------------------------

    def begin_of_step(self) -> None:
        """Take the state before the step where it is time."""
        if self._at_first is None:
            self._look_at_the_start()
        self.spent.account.steps_begin(self._step())
        self.profile.step_begins(self._step() + 1)
        if self.rollback.is_due():
            with self.spent.spent_on(Spending.SNAPSHOTTING):
                self.rollback.step_begins(self._step_time_s, is_due=True)
        else:
            self.rollback.step_begins(self._step_time_s, is_due=False)

    def _look_at_the_start(self) -> None:
        """Note what is finite before the first step; where no device has to be waited for, look at it too."""
        from ...tensors.finite_at_first import FiniteAtFirst

        self._at_first = FiniteAtFirst(self.trainer.model)
        if self.rollback.keeper is not None:
            # A norm may be infinite of values that are finite, so that they themselves are asked.
            self.rollback.keeper.began_broken = lambda _names: self._tell_of_a_broken_start()
        if self._at_first.is_known:
            self._tell_of_a_broken_start()

    def _tell_of_a_broken_start(self) -> None:
        """Say that training has begun with weights that are not finite: nothing that is tried could mend them."""
        names = self._at_first.broken_weights() if self._at_first is not None and not self.began_broken else []
        if not names:
            return
        self.began_broken = True
        told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        self.note(
            "began-not-finite",
            f"the state that this training begins with is not finite ({told}): look at how the model was loaded, at its dtype "
            "and its initialisation",
            level=logging.ERROR,
        )
        if not self.guard.lets_through:  # else as the user has asked for
            self.desk.learn({"not_finite_at_start": told})
            self.desk.look({"weights_nonfinite": float(len(names))})

    def end_of_step(self) -> None:
        """Read what the device said, make up what it skipped, and let the healer look at it."""
        self.guard.step_is_done()
        self.spent.account.step_done(self._step())
        self.spent.tell_now_and_then(self.desk)
        self.profile.step_ends(self._step())
        now = time.perf_counter()
        self._step_time_s, self._step_began = now - self._step_began, now
        must_know = self._must_know()
        self.intake.read(step_time_s=self._step_time_s, wait=must_know)
        self.intake.ended.append(self._step())
        if not must_know and self.intake.can_wait():
            return
        self.intake.take_in()
        if not must_know and self._must_know():  # a plan has just asked for a checkpoint
            self.know_everything()
        self.intake.judge_by_steps()

    def know_everything(self) -> None:
        """Take in all steps so far, to the last."""
        self.intake.read(step_time_s=self._step_time_s, wait=True)
        self.intake.take_in()

    def _must_know(self) -> bool:
        """Say whether everything about the steps so far has to be known: what comes next is written, or taken as a state."""
        control = self.trainer.control
        is_written = control.should_log or control.should_save or control.should_evaluate
        return bool(is_written or control.should_training_stop or self.rollback.is_due())

    def make_up(self, unsound: list[int]) -> list[AppliedStep]:
        """Have skipped steps made up and write that down; return those that were applied."""
        self._found_unsound = False
        began, making_up = time.perf_counter(), self.guard.making_up
        before = making_up.replaced_steps, making_up.skipped_steps
        with self.spent.spent_on(Spending.MADE_UP):
            made_up = self.guard.make_up()
        if made_up and not self._found_unsound:
            self.desk.learn(self._examiner.was_transient())
        replaced, left_out = making_up.replaced_steps - before[0], making_up.skipped_steps - before[1]
        counts = {"made up with the same data": made_up - replaced, WITH_OTHER_DATA: replaced, "left out": left_out}
        seconds = time.perf_counter() - began
        self.desk.reflex(made_up_reflex(unsound, making_up.applied, counts, step=self._step(), seconds=seconds))
        return making_up.applied

    def is_told(self, reading: StepReading) -> bool:
        """Say whether the rules are to hear of a step."""
        return True

    def _examine(self, window: Window) -> bool:
        """Find out why a step is not finite even when it is run again; say whether that was mended, or has passed."""
        self._found_unsound = True
        if self.guard.making_up.may_replace and generates_for_several_steps(self.trainer):
            self.note(
                "step-left-out", f"step {window.step + 1} is left out: what else was generated is for other steps"
            )
        if self.surroundings.is_one_of_several:  # the others would wait for passes that only this process makes
            return False
        found = self._examiner.examine(window, self.guard.original_training_step)
        if found:
            self.note("nan-examined", str(found["nan_because"]))
            self.desk.learn(found)
        return self.look_at_weights(window.step) or found.get("nan_kind") == "transient"

    def look_at_weights(self, step: int) -> bool:
        """Look whether the weights after a step are to blame for what follows; say whether they were and have been mended.

        It is cheap, and nothing but an earlier state helps against broken weights; against those that no state holds, not
        even that.
        """
        if self.rollback.frozen_is_broken(look=True) and self.pending.stop_reason is not None:
            return False
        broken = self._broken_weights()
        if broken:
            self._tell_of_a_broken_start()
        self.abilities.last_with_sound_weights = step if broken else None
        self.desk.look({"weights_nonfinite": float(broken), "weights_seen_in_step": float(step + 1)})
        if (
            self.pending.stop_reason is not None
        ):  # which may have put an earlier state back: nothing is trained any more
            return False
        mended = broken > 0 and self.weights_are_finite()
        if mended:
            self.desk.look({"weights_nonfinite": 0.0})
        self.rollback.suspect()
        return mended

    def look_at_the_end(self) -> None:
        """Look at weights and moments when the last step was taken: what it has done to them no later step can show."""
        from ...tensors.sharded import is_sharded

        if self.interrupted_by is not None or self.abilities.stop_reason is not None:
            return  # it ends because of what is known already
        if any(is_sharded(parameter) for parameter in self.trainer.model.parameters()):
            return  # a look would be a collective of the training's own group
        # What does not train may hold infinities by design, and is looked at by its bits.
        broken = self._broken_weights(only_trained=True)
        if not broken:
            self.rollback.suspect()
        elif self.guard.lets_through:
            self.note("ends-not-finite", f"{broken} tensors of weights are not finite at the end", level=logging.ERROR)
        else:
            self.look_at_weights(self._step())

    def emergency_checkpoint(self) -> str:
        """Write a checkpoint of the last complete step if its weights are finite; say in a sentence what came of it."""
        return emergency_checkpoint(self)

    def may_be_interrupted(self) -> bool:
        """Say whether a signal can be answered at this place."""
        return True

    def is_saved(self, step: int) -> bool:
        """Say whether the state after a step is on disk: written by this training, or what it began with."""
        return step in self._saved_steps

    def newest_saved(self) -> int | None:
        """Return the newest step whose checkpoint this training has written or begun with, None where there is none."""
        return max(self._saved_steps, default=None)

    def mark_saved(self, step: int, *, was_written: bool = False) -> None:
        """Take note of a checkpoint that the trainer has not written itself: we have, or it is what is gone on from."""
        self._saved_steps.add(step)
        if was_written:
            self.desk.record(SAVED, {"key": f"checkpoint-{step}"})

    def weights_are_finite(self) -> bool:
        """Look at every parameter and every buffer; waits for the device."""
        return self._broken_weights() == 0

    def _broken_weights(self, *, only_trained: bool = False) -> int:
        from ...tensors.norms import count_not_finite

        model, keeper = self.trainer.model, self.rollback.keeper
        left_alone = keeper.audit.buffers.left_alone if keeper is not None else ()
        buffers = self._at_first.broken_buffers(model, left_alone) if self._at_first is not None else ()
        masks = self._at_first.masks if self._at_first is not None else ()
        named = model.named_parameters()
        weights = (p for name, p in named if p.requires_grad or not (only_trained or name in masks))
        return count_not_finite(weights) + len(buffers)

    def figures_of_saving(self) -> dict[str, float]:
        """Return how many checkpoints could not be written; nothing where all were."""
        count = len(self.checkpoints.not_written) if self.checkpoints is not None else 0
        return {"healing/checkpoints_not_written": count} if count else {}

    def saved(self) -> None:
        """Report a checkpoint: a state that can be returned to."""
        report_checkpoint(self)

    def _returned(self, arrival: Arrival) -> None:
        """Go on from an earlier state: what is counted since then has not happened."""
        to_step = arrival.snapshot.step
        self.spent.account.returned(to_step)
        self._forget_what_is_undone(to_step)
        self.log_figures.begin()
        self.ranks.begins_at(to_step, has_returned=True)
        self.pending.arrived(arrival.move, step=to_step, from_step=arrival.from_step)
        self._step_began = time.perf_counter()

    def _forget_what_is_undone(self, to_step: int) -> None:
        """Count nothing any more of the steps after one that the run has gone back to, be it in memory or on disk."""
        self.intake.ended.clear()
        self._saved_steps = {step for step in self._saved_steps if step <= to_step}
        self.figures.returned(to_step)
        if self.checkpoints is not None:
            self.checkpoints.returned(to_step, self.abilities.own_checkpoints.after(to_step))

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

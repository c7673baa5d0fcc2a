"""One guarded `train()` of a Hugging Face Trainer: signals out of the loop, plans into it."""

from __future__ import annotations

import logging
import signal
import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.failure import Effect, Mode
from ...core.goodput import Spending, TimeAccount
from ...core.run_directory import healing_folder
from ...core.signal import SnapshotTaken
from ..data.bad_rows import BadRows
from ..data.quarantine import Limit
from ..data.trainer_data import TrainerData
from ..memory.memory_care import MemoryCare
from ..ranks.trainer_ranks import TrainerRanks
from ..rollback.checkpoint_care import CheckpointCare
from ..rollback.rollback_care import RollbackCare
from ..rollback.state_returns import Arrival
from .checkpoint_folders import newest_usable
from .data_facts import data_facts, recipe_facts
from .engines import Surroundings
from .examination import Examiner
from .grace import GraceWatch
from .gradient_gate import gate_of
from .interrupts import Interrupts, nobody_listens, signals_left_to_us
from .leaving import emergency_checkpoint, leave_at_once, save_as_asked, secure_in_time
from .log_figures import LogFigures
from .logged_health import LoggedHealth, judgement_facts
from .make_up import AppliedStep
from .moves import LeaveLoop, ReturnTo, RollBackTo
from .raising import raised_in_the_loop
from .reflexes import WITH_OTHER_DATA
from .reflexes import made_up as made_up_reflex
from .run_desk import RunDesk, facts_of_run
from .run_figures import RunFigures
from .step_intake import StepIntake
from .step_profile import StepProfile
from .time_spent import TimeSpent
from .trackers import TrackerFence
from .trl_counters import generates_for_several_steps
from .unwritten import unwritten_checkpoints
from .window import Window
from .wrapping import Wrapping

if TYPE_CHECKING:
    from ...config import HealingConfig

logger = logging.getLogger("self_healing.trainer")


class TrainerSession:
    """Emits the signals of one training, and has plans carried out by what the trainer can do."""

    def __init__(
        self, trainer: Any, config: HealingConfig, mode: Mode, *, account: TimeAccount | None = None, **past: bool
    ) -> None:
        from .trainer_guard import TrainerGuard

        self.spent = TimeSpent(account or TimeAccount(time.perf_counter))

        self.trainer = trainer
        self.config = config
        self.surroundings = Surroundings(trainer)
        if mode is Mode.HEAL and self.surroundings.only_measures:
            mode = Mode.ADVISE
        self.mode = mode
        acts = mode is Mode.HEAL
        self.guard = TrainerGuard(trainer, gate_of(config, acts=acts), acts=acts)
        self.guard.making_up.on_unsound = self._examine
        self.guard.making_up.may_replace = may_change = config.settings().max_effect is Effect.RECIPE
        self.guard.lets_through = config.nan_action == "warn"
        self._examiner = Examiner(trainer)
        self._found_unsound = False
        may_act = acts and self.surroundings.is_whole
        self.rollback = RollbackCare(trainer, self.guard, config, may_act=may_act)
        self.rollback.on_return = self._returned
        self.abilities = self.rollback.abilities(self.emergency_checkpoint, may_change)
        self.pending = self.abilities.pending
        self.answered: Exception | None = None
        """An exception that was looked at before it left the loop."""
        self.ranks = TrainerRanks(is_one_of_several=self.surroundings.is_one_of_several)
        self.desk = RunDesk(
            trainer.args, config, self.ranks.abilities_of(self.abilities), mode=self.ranks.mode_of(mode), step=self._step,
            account=self.spent.account, heals=acts, **past,
        )  # fmt: skip
        self.pending.tell, self.pending.step = self.desk.tell_of_move, self._step
        self.note = self.abilities.note = self.desk.note
        folder = healing_folder(trainer.args.output_dir)
        self.memory = MemoryCare(
            trainer, folder, on_reflex=self.desk.reflex, note=self.note,
            whole_because=_why_whole(config),
        )  # fmt: skip
        self.guard.retry, self.abilities.why_whole = (
            self.memory.micro_batches if acts and config.oom_action != "raise" else None,
            self.memory.micro_batches.why_whole,
        )
        self.checkpoints = (
            CheckpointCare(trainer, self.desk, folder, self.weights_are_finite, self.guard) if may_act else None
        )
        preempting = [signal.Signals[name] for name in config.preemption_signals]
        self.interrupts = Interrupts(signals_left_to_us(trainer.args, preempting), preempting)
        self.grace = GraceWatch(config.grace_seconds, partial(secure_in_time, self), partial(leave_at_once, self))
        self.interrupted_by: signal.Signals | None = None
        self.data = TrainerData(
            trainer, limit=Limit(fraction=config.quarantine_fraction, records=config.quarantine_records),
            backoff_base_s=config.backoff_base_s, max_effect=config.settings().max_effect if acts else Effect.NOTHING,
            tell=self.note, on_reflex=self.desk.reflex, interrupts=self.interrupts,
            seeds_batches=config.exact_data_resume, reward_timeout_s=config.reward_timeout_s,
        )  # fmt: skip
        if may_act and self.data.records.leaves_out:
            self.guard.bad_rows = BadRows(trainer, self.data.records.rows_raised, self.guard.making_up)
        self._changes = Wrapping()
        self.figures = RunFigures(self)
        self._trackers = TrackerFence(trainer.args, self.note, self.figures.all)
        # One process is enough: all would write to the same files.
        self.profile = StepProfile(config.profile_steps if trainer.args.process_index == 0 else (), folder)
        self.log_figures = LogFigures(trainer, self.guard, self.rollback.figures, self.spent.goodput)
        self._step_began, self._step_time_s = time.perf_counter(), 0.0
        self.intake = StepIntake(self)
        self._attached = False
        self._saved_steps: set[int] = set()
        """Checkpoints of this training; others in the same folder may be another run's."""
        self.desk.open()  # last: whoever fails to make a session has nothing to close

    # -- life ----------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the guard into the trainer, and say what it cannot do there."""
        self._attached = True  # first, so that what follows is undone also if it fails half-way
        for name, text, level in self.surroundings.remarks():
            self.note(name, text, level=level)
        self.ranks.attach(self.trainer.accelerator, self._changes)
        self.data.attach(continues=self.desk.continues)
        self.rollback.attach(self.desk, partial(raised_in_the_loop, self))
        self.guard.attach()
        self.log_figures.attach(self._changes)
        LoggedHealth(self.trainer, self.desk).attach(self._changes)
        if self.mode is Mode.HEAL:
            self.interrupts.install()
            self.interrupts.on_signal = self.grace.came
            self.grace.begin(frozenset(number for number in self.interrupts.ending if number != signal.SIGINT))
            if self.config.oom_action != "raise":
                self.memory.attach(self._changes)
            self.guard.loss_sum.after_log = partial(save_as_asked, self)
        self._trackers.attach(
            self.trainer.callback_handler.callbacks, self.desk.alerts, continues=self.desk.continues,
            is_fenced=self.mode is Mode.HEAL,
        )  # fmt: skip
        if self.checkpoints is not None:
            self.checkpoints.audit = self.rollback.audit_checkpoint
            self.checkpoints.attach(self._changes)
        self.interrupts.while_waiting = self.spent.stalled
        self.spent.attach(self.trainer, self.rollback.keeper, self._changes)

    def detach(self) -> None:
        """Take it out again and put the trainer's settings back."""
        self.grace.end()
        self.interrupts.restore()
        self.interrupts.on_signal, self.interrupts.while_waiting = nobody_listens, nullcontext
        if self._attached:
            self.abilities.put_back()  # in the reverse order: it has wrapped what others had wrapped before
            self.guard.detach()
            self.rollback.detach()
            self.data.detach()
            self._changes.restore()
            self._trackers.detach()
            self.memory.end()
            self.profile.end()
            self._attached = False

    def close(self) -> None:
        """End the session: the trainer is as it was, the ledger is written, the directory free."""
        try:
            self.detach()
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()
                self.checkpoints = None
            del self.intake  # which holds the session
            self.answered = None  # whose frames do
            self.figures.close()
            self.pending.close()
            self.rollback.close()
            self.desk.close()

    # -- signals -------------------------------------------------------------------------------------

    def begin_training(self) -> None:
        """Note how steps can be skipped and what is known of the run."""
        if self.desk.resumes and self._step() and not self.rollback.enters_from_memory():
            self._saved_steps.add(self._step())
        self.intake.ended.clear()
        self.ranks.meet(self.desk, self.config)
        way = self.guard.attach_optimizer()
        if self.checkpoints is not None:
            self.checkpoints.training_begins()
        self.log_figures.begin()
        self.rollback.begin()
        self.pending.entered()
        trainer = self.trainer
        facts = {**facts_of_run(trainer.args, trainer.state, trainer.model), **judgement_facts(trainer)}
        self._step_began = time.perf_counter()
        facts.update(data_facts(trainer) | recipe_facts(trainer))
        self.desk.learn({**facts, "trainer": type(trainer).__name__, "skips_by": way})
        self.desk.seen_at(self._trackers.begin())

    def begin_of_step(self) -> None:
        """Take the state before the step where it is time."""
        self.spent.account.steps_begin(self._step())
        self.profile.step_begins(self._step() + 1)
        if self.rollback.is_due():
            with self.spent.spent_on(Spending.SNAPSHOTTING):
                self.rollback.step_begins(self._step_time_s, is_due=True)
        else:
            self.rollback.step_begins(self._step_time_s, is_due=False)

    def end_of_step(self) -> None:
        """Read what the device said, make up what it skipped, and let the healer look at it; vote with the other processes."""
        began = self._step_began
        self._take_in_step()
        if self.ranks.step_ended(self.desk, began_s=began) and self._must_know():
            self._know_everything()

    def _take_in_step(self) -> None:
        self.guard.walks.step_is_done()
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
            self._know_everything()
        self.intake.judge_by_steps()

    def _know_everything(self) -> None:
        self.intake.read(step_time_s=self._step_time_s, wait=True)
        self.intake.take_in()

    def _must_know(self) -> bool:
        """Say whether everything about the steps so far has to be known: what comes next is written, or taken as a state."""
        control = self.trainer.control
        is_written = control.should_log or control.should_save or control.should_evaluate
        return bool(is_written or control.should_training_stop or self.rollback.is_due())

    def go_where_asked(self) -> None:
        """Leave the loop, or return to an earlier state inside of it, where a plan says so."""
        if self.interrupted_by is not None:  # it is saved and ends
            self.pending.dropped(f"{self.interrupted_by.name} came, and there is no time to train anything again")
            return
        move = self.pending.take()
        if move is None:
            return
        self.desk.forget_what_waits()  # what was seen of steps that are undone
        raise RollBackTo(move) if isinstance(move, ReturnTo) else LeaveLoop(move)

    def end_of_epoch(self) -> None:
        """Leave nothing to be made up: logs, checkpoints and evaluations of an epoch come next."""
        self._know_everything()

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

    def _examine(self, window: Window) -> bool:
        """Find out why a step is not finite even when it is run again; say whether that was mended."""
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
        # Looked at each time, for it is cheap: nothing but an earlier state helps against broken weights.
        broken = self._broken_weights()
        self.desk.look({"weights_nonfinite": float(broken)})
        mended = broken > 0 and self.weights_are_finite()
        if mended:
            self.desk.look({"weights_nonfinite": 0.0})
        self.rollback.suspect()
        return mended

    def emergency_checkpoint(self) -> str:
        """Write a checkpoint of the last complete step if its weights are finite; say in a sentence what came of it."""
        return emergency_checkpoint(self)

    def is_saved(self, step: int) -> bool:
        """Say whether the state after a step is on disk: written by this training, or what it began with."""
        return step in self._saved_steps

    def newest_saved(self) -> int | None:
        """Return the newest step whose checkpoint this training has written or begun with, None where there is none."""
        return max(self._saved_steps, default=None)

    def mark_saved(self, step: int) -> None:
        """Take note of a checkpoint that the trainer has not written itself."""
        self._saved_steps.add(step)

    def weights_are_finite(self) -> bool:
        """Look at every parameter; waits for the device."""
        return self._broken_weights() == 0

    def _broken_weights(self) -> int:
        import torch

        return sum(not bool(torch.isfinite(p).all()) for p in self.trainer.model.parameters())

    def figures_of_saving(self) -> dict[str, float]:
        """Return how many checkpoints could not be written; nothing where all were."""
        count = len(self.checkpoints.not_written) if self.checkpoints is not None else 0
        return {"healing/checkpoints_not_written": count} if count else {}

    def ended(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended."""
        self.desk.finish()
        self.ranks.close(error)
        self.pending.dropped(f"the run has ended ({exit_reason})")
        self._trackers.tell_losses()
        if self.data.pushes.missing is not None:  # the log has it already
            self.desk.record("not-pushed", {"text": self.data.pushes.missing})
        not_listed = self.data.records.not_listed()
        if not_listed is not None:
            self.note("rows-not-listed", not_listed)
        unwritten = unwritten_checkpoints(self)
        if unwritten is not None:
            self.note("checkpoints-not-written", unwritten.told, level=logging.ERROR)
        self.rollback.ended(exit_reason, is_unsaved=unwritten is not None and unwritten.is_unsaved)
        self.spent.account.steps_over()
        self.spent.tell(self.desk)
        self.desk.ended(
            exit_reason, error, {**self.log_figures.figures(), **self.memory.figures(), **self.figures_of_saving()}
        )

    def saved(self) -> None:
        """Report a checkpoint: a state that can be returned to."""
        step = self._step()
        folder, _ = newest_usable(self.trainer.args.output_dir, step + 1)
        if folder is not None and folder.step == step:
            self._saved_steps.add(step)
            self.desk.signal(SnapshotTaken(step=folder.step, time_s=time.time(), key=str(folder.path)))

    def _returned(self, arrival: Arrival) -> None:
        """Go on from an earlier state: what is counted since then has not happened."""
        to_step = arrival.snapshot.step
        self.spent.account.returned(to_step)
        self.intake.ended.clear()
        self._saved_steps = {step for step in self._saved_steps if step <= to_step}
        self.log_figures.begin()
        self.figures.returned(to_step)
        if self.checkpoints is not None:
            self.checkpoints.returned(to_step)
        self.pending.arrived(arrival.move, step=to_step, from_step=arrival.from_step)
        self._step_began = time.perf_counter()

    def _step(self) -> int:
        return int(self.trainer.state.global_step)


def _why_whole(config: HealingConfig) -> str | None:
    """Say why no batch may go through in pieces where memory runs out, if the user says so."""
    if config.oom_action != "split":
        return f"oom_action is {config.oom_action}"
    if config.max_effect != "nothing":
        return None
    return "max_effect is nothing, and the gradient of pieces is equal to that of the whole but for rounding"

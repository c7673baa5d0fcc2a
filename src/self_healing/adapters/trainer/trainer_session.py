"""One guarded `train()` of a Hugging Face Trainer: signals out of the loop, plans into it."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.failure import Mode
from ...core.goodput import TimeAccount
from ..ending.leaving import end_as_planned, save_as_asked
from ..ending.raising import raised_in_the_loop
from ..engines import Surroundings
from ..ranks.trainer_ranks import TrainerRanks
from ..rollback.best_checkpoint import load_no_sick_best
from ..rollback.rollback_care import RollbackCare
from ..run.data_facts import data_facts, recipe_facts
from ..run.moves import LeaveLoop, ReturnTo, RollBackTo
from ..run.run_desk import RunDesk, facts_of_run
from ..run.session import Session
from ..run.time_spent import TimeSpent
from ..step.gradient_gate import gate_of
from .logged_health import LoggedHealth, judgement_facts
from .trackers import TrackerFence

if TYPE_CHECKING:
    from ...config import HealingConfig
    from .trainer_guard import TrainerGuard


class TrainerSession(Session):
    """Emits the signals of one training, and has plans carried out by what the trainer can do."""

    guard: TrainerGuard
    ranks: TrainerRanks

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
        self._set_guard(TrainerGuard(trainer, gate_of(config, acts=acts), acts=acts))
        may_act = acts and self.surroundings.is_whole
        self.ranks = TrainerRanks(is_one_of_several=self.surroundings.is_one_of_several)
        is_asked = self.ranks.mode_of(mode) is Mode.HEAL and self.surroundings.returns_together
        # Several processes go on from a checkpoint: nobody would look for what one of them has left in shared memory.
        kept = config.replace(shared_memory=False) if is_asked else config
        self.rollback = RollbackCare(trainer, self.guard, kept, self.spent.account, may_act=may_act or is_asked)
        self.rollback.on_return = self._returned
        self.abilities = self.rollback.abilities(self.emergency_checkpoint, self._may_change)
        self.pending = self.abilities.pending
        abilities = self.ranks.abilities_of(self.abilities, self.rollback.keeper)
        self._set_desk(
            RunDesk(
                trainer.args, config, abilities, mode=self.ranks.mode_of(mode), step=self._step,
                account=self.spent.account, heals=acts, **past,
            )
        )  # fmt: skip
        self._make_care(
            leaves_rows_out=may_act, keeps_checkpoints=acts and self.surroundings.is_saved_by_one,
            seeds_batches=config.exact_data_resume, reward_timeout_s=config.reward_timeout_s,
        )  # fmt: skip
        self._make_figures()
        self._trackers = TrackerFence(trainer.args, self.note, self.figures.all)
        self._attached = False
        self.desk.open()  # last: whoever fails to make a session has nothing to close

    # -- life ----------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the guard into the trainer, and say what it cannot do there."""
        self._attached = True  # first, so that what follows is undone also if it fails half-way
        for name, text, level in self.surroundings.remarks():
            self.note(name, text, level=level)
        self.ranks.attach(self.trainer.accelerator, self._changes)
        self.data.attach(continues=self.desk.continues)
        self.rollback.attach(self.desk, partial(raised_in_the_loop, self), self._look_once_more)
        self.guard.attach()
        self.log_figures.attach(self._changes)
        LoggedHealth(self.trainer, self.desk).attach(self._changes)
        if self.mode is Mode.HEAL:
            self._listen()
            if self.config.oom_action != "raise":
                self.memory.attach(self._changes)
            self.guard.loss_sum.after_log = partial(save_as_asked, self)
        self._trackers.attach(
            self.trainer.callback_handler.callbacks, self.desk.alerts, continues=self.desk.continues,
            is_fenced=self.mode is Mode.HEAL,
        )  # fmt: skip
        if self.checkpoints is not None:
            self.checkpoints.audit = self.rollback.audit_checkpoint
            self.checkpoints.left_out, self.checkpoints.leave_out = self.rollback.left_out, self.rollback.leave_out
            self.checkpoints.attach(self._changes)
            load_no_sick_best(self, self._changes)
        self.interrupts.while_waiting = self.spent.stalled
        self.spent.attach(self.trainer, self.rollback.keeper, self._changes)

    def detach(self) -> None:
        """Take it out again and put the trainer's settings back."""
        self._listen_no_more()
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
        if self.pending.goes_back_on_disk:
            self._forget_what_is_undone(self._step())
        self.ranks.meet(self.desk, self.config, self.rollback.keeper)
        way = self.guard.attach_optimizer()
        if self.checkpoints is not None:
            self.checkpoints.training_begins()
        self.log_figures.begin()
        self.rollback.begin()
        self.ranks.begins_at(self._step())
        self.pending.entered()
        trainer = self.trainer
        facts = {**facts_of_run(trainer.args, trainer.state, trainer.model), **judgement_facts(trainer)}
        self._step_began = time.perf_counter()
        facts.update(data_facts(trainer) | recipe_facts(trainer))
        self.desk.learn({**facts, "trainer": type(trainer).__name__, "skips_by": way})
        self.desk.seen_at(self._trackers.begin())

    def begin_of_step(self) -> None:
        """Take the state before the step where it is time; end here where a plan says so: no step follows the last state."""
        super().begin_of_step()
        if self.abilities.stop_reason is not None:
            end_as_planned(self)

    def end_of_step(self) -> None:
        """Read what the device said, make up what it skipped, and let the healer look at it; vote with the other processes."""
        began = self._step_began
        super().end_of_step()
        if self.ranks.step_ended(self.desk, began_s=began) and self._must_know():
            self.know_everything()

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
        """Leave nothing to be made up or voted on: logs, checkpoints and evaluations of an epoch come next."""
        self.know_everything()
        if self._is_last_epoch():
            self.look_at_the_end()
        self.ranks.epoch_ended(self.desk)

    def _is_last_epoch(self) -> bool:
        trainer, state = self.trainer, self.trainer.state
        return bool(
            trainer.control.should_training_stop
            or state.global_step >= state.max_steps
            or round(state.epoch or 0) >= state.num_train_epochs
        )

    def _look_once_more(self) -> None:
        """Look again when the last epoch was evaluated and saved, which may have harmed it; go back where that shows."""
        if self._is_last_epoch() and not self.surroundings.is_one_of_several:
            self.look_at_the_end()
            self.go_where_asked()

    def ended(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended."""
        self.desk.finish()
        self.ranks.close(error)
        self.pending.dropped(f"the run has ended ({exit_reason})")
        self._trackers.tell_losses()
        if self.data.pushes.missing is not None:  # the log has it already
            self.desk.record("not-pushed", {"text": self.data.pushes.missing})
        self._write_end(exit_reason, error)

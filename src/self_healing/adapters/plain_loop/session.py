"""One guarded loop of somebody's own: signals out of it, plans into it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.errors import say_given_up
from ...core.failure import Mode
from ...core.goodput import TimeAccount
from ..ending.device_errors import is_device_lost
from ..ending.leaving import answer_interrupt, emergency_checkpoint, lose_device
from ..ending.raising import raised
from ..engines import Surroundings
from ..memory.memory_errors import let_go
from ..rollback.also_state import with_what_is_outside
from ..rollback.rollback_care import RollbackCare
from ..run.moves import ReturnTo
from ..run.run_desk import RunDesk
from ..run.time_spent import TimeSpent
from ..step.gradient_gate import gate_of
from ..step.make_up import AppliedStep
from ..step.window import Window
from .abilities import KINDS, KINDS_TOGETHER
from .doing_again import DoingAgain
from .facts import facts_of_loop
from .failing_together import FailingTogether
from .flow import LoopFlow
from .going_on_together import attempt_before, lessons_before
from .less_memory import LessMemory
from .loop_returns import LoopReturns
from .plain_guard import PlainGuard, can_be_run
from .saving import write_now, write_place_of
from .stand_in import LoopStandIn
from .together import NOT_TOGETHER, LoopRanks

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ..ending.last_attempt import LastAttempt
    from ..step.step_reading import StepReading

logger = logging.getLogger("self_healing.loop")


class PlainSession(LoopFlow):
    """Emits the signals of one loop, and has plans carried out by what it can do."""

    failed: Window | None = None
    """The step that has raised, while that is answered."""
    _last_figures: dict[str, float]

    def __init__(
        self,
        stand_in: LoopStandIn,
        config: HealingConfig,
        mode: Mode,
        *,
        save_every: int | None,
        also: tuple[Any, ...],
        **past: bool,
    ) -> None:
        self.trainer = stand_in
        stand_in.also = self.also = with_what_is_outside(stand_in, also)
        self.config = config
        self.spent = TimeSpent(TimeAccount(time.perf_counter))
        self.surroundings = Surroundings(stand_in, missing=())
        self.mode = mode
        acts = mode is Mode.HEAL
        self._set_guard(PlainGuard(stand_in, gate_of(config, acts=acts), acts=acts))
        self.guard.updated = self._updated
        self.may_leave_out = self._may_change
        self.ranks = LoopRanks(self)
        planned = self.ranks.mode_of(mode)
        may_act = planned is Mode.HEAL
        kinds = KINDS_TOGETHER if self.ranks.is_one_of_several else KINDS
        self.rollback = RollbackCare(
            stand_in, self.guard, config, self.spent.account, may_act=may_act, kind=LoopReturns, abilities=kinds
        )  # fmt: skip
        self.rollback.on_return = self._returned
        self.returns = self._returns()
        self.abilities = self.rollback.abilities(self.emergency_checkpoint, self._may_change)
        self.pending = self.abilities.pending
        self._set_desk(
            RunDesk(
                stand_in.args, config, self.abilities, mode=planned, step=self._step, account=self.spent.account,
                heals=acts, **past,
            )
        )  # fmt: skip
        # Passes of one process alone are possible where only gradients are shared.
        is_sharded = bool(getattr(stand_in.accelerator, "is_fsdp2", False))
        self._make_care(leaves_rows_out=may_act and not is_sharded, keeps_checkpoints=may_act)
        if self.guard.bad_rows is not None:
            self.guard.bad_rows.alone = self.memory.micro_batches.alone
        self._make_figures()
        self.save_every = save_every
        self._loaders = []
        self.again = DoingAgain(self, self.data.records.retries)
        self.failing = FailingTogether(self)
        self.is_open, self._last_figures = False, {}
        stand_in.write, stand_in.write_place = partial(write_now, self), partial(write_place_of, self)
        self.before: LastAttempt | None = attempt_before(stand_in.args) if self.ranks.is_one_of_several else None
        self.lessons_before = lessons_before(stand_in.args) if self.ranks.is_one_of_several else []
        self.less_memory = LessMemory(self)
        self.desk.open()  # last: whoever fails to make a session has nothing to close

    # -- life ----------------------------------------------------------------------------------------

    def begin(self, enter: Callable[[PlainSession], None]) -> None:
        """Put the guard into the loop, and say what it cannot do there."""
        self.is_open = True
        stand_in = self.trainer
        for name, text, level in self.surroundings.remarks():
            self.note(name, text, level=level)
        self.data.records.begin()
        self.rollback.attach(self.desk, partial(raised, self))
        way = self.guard.attach()
        if self.mode is Mode.HEAL:
            self._listen()
        if self.checkpoints is not None:
            self.checkpoints.audit = self.rollback.audit_checkpoint
            self.checkpoints.finish_writing = self.ranks.finish_writing
            self.checkpoints.attach(self._changes)
        self.interrupts.while_waiting = self.spent.stalled
        self.spent.attach(stand_in, self.rollback.keeper, self._changes)
        self.ranks.meet(self.desk, self.config, self.rollback.keeper)
        enter(self)
        self.ranks.begins_at(self._step())
        self.intake.ended.clear()
        self.log_figures.begin()
        self.pending.entered()
        self._step_began = time.perf_counter()
        self.desk.learn({**facts_of_loop(stand_in), "trainer": "loop", "skips_by": way})

    def end(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended, and put everything back; once."""
        if not self.is_open:
            return
        self.is_open, self.is_over = False, True
        try:
            self.ranks.close(error)
            self.desk.finish()
            self.pending.dropped(f"the run has ended ({exit_reason})")
            self._write_end(exit_reason, error)
            self.all_figures()
        finally:
            self._close()

    def all_figures(self) -> dict[str, float]:
        """Return every figure of healing there is; those of its end where the run is over."""
        figures = self.figures.all({})
        if figures:
            self._last_figures = {**figures, **self._counted(), **self.data.figures()}
        return self._last_figures

    def _close(self) -> None:
        self._listen_no_more()
        self.abilities.put_back()
        self.guard.detach()
        self.rollback.detach()
        self.returns.end()
        self.data.records.detach()
        self._changes.restore()
        self.memory.end()
        self.profile.end()
        if self.checkpoints is not None:
            self.checkpoints.close()
            self.checkpoints = None
        self.answered = None
        self.figures.close()
        self.pending.close()
        self.desk.close()

    def _returns(self) -> LoopReturns:
        keeper = self.rollback.keeper
        returns = LoopReturns(self.trainer, guard=self.guard) if keeper is None else keeper.loop
        assert isinstance(returns, LoopReturns), "the keeper was made with this kind"
        returns.waiting = lambda: list(self.guard.kept)
        return returns

    # -- steps ---------------------------------------------------------------------------------------

    def is_complete(self) -> bool:
        """Say whether all gradients of an update are there."""
        window = self.guard.begin_window()
        return len(window.losses) >= int(self.trainer.current_gradient_accumulation_steps)

    def finish(self, reason: str, error: BaseException | None) -> None:
        """End the run: what is left is looked at, and nothing can be handed out again."""
        if not self.is_open:
            return
        if error is None and not self.is_over:
            self.guard.hands_out_again = False
            was_left = self._has_stepped  # by `break`
            if was_left:
                self._step_ends()
            self.know_everything()
            answer_interrupt(self, at_once=True)
            self.intake.judge_by_steps()
            if was_left:
                self._look_at_what_was_left()
            self._settle_moves()
        elif isinstance(error, Exception) and self.mode is Mode.HEAL and self.is_open:
            self.note("emergency", self.emergency_checkpoint())
        self.end(reason, error)

    def _look_at_what_was_left(self) -> None:
        """Look at the weights of a loop that trains nothing again; sound ones are put back in the place of broken ones.

        Only what is not finite counts: what else has changed may be the user's doing, who has the run closed afterwards.
        """
        step = self._step()
        if not self.ranks.is_one_of_several and self._broken_weights(only_trained=True):
            self.look_at_the_end()
            if self.pending.is_returning and self.go_where_asked():
                told = f"they are those of step {self._step()} now, and nothing is trained again"
                self.note(
                    "ends-at-an-earlier-state",
                    f"the weights were not finite when the loop was left at step {step}: {told}",
                    level=logging.ERROR,
                )
        if isinstance(move := self.pending.asked, ReturnTo):
            self.note("not-returned", f"the loop was left at step {step}: it does not return to {move.key} any more")

    def begin_block(self) -> Window:
        """Begin a step, or go on with one that gradients are added up for."""
        is_new = not self.guard.is_in_window
        window = self.guard.begin_window()
        if is_new:
            window.stood = self._stands
            self._stands = None
        self.guard.begin_block(window)
        return window

    def _updated(self, _window: Window) -> None:
        self._has_stepped = True
        self.unfinished = None

    def _examine(self, window: Window) -> bool:
        """Find out why a step is not finite, by the loss function that it had."""
        self.trainer.source = window.micro_batches[0].source
        return super()._examine(window)

    def end_of_step(self) -> None:
        """Take in what is known, also where the loop takes its batches elsewhere."""
        began = self._step_began
        super().end_of_step()
        self.ranks.step_ended(self.trainer.backward_s - began if self.trainer.backward_s > began else 0.0)
        self.again.stepped(self._step())

    def make_up(self, unsound: list[int]) -> list[AppliedStep]:
        """Have skipped steps made up, by us or by the loop itself."""
        try:
            applied = super().make_up(unsound) if self._some_can_be_run() else self._leave_all_to_the_loop()
        except Exception as error:
            if is_device_lost(error) or not self.again.raised_when_made_up(error):
                raise
            return self.guard.making_up.applied
        left, self.guard.left_to_the_loop = self.guard.left_to_the_loop, []
        if left and self.ranks.is_one_of_several:
            self._look_at_weights_together()
        if left and self.guard.hands_out_again:
            self.again.unsound(left[0])
        else:
            for window in left:
                self.again.leave_out(window)
        return applied

    def is_told(self, reading: StepReading) -> bool:
        """Say whether the rules are to hear of a step; of the tries of one that other data are being found for, of the first."""
        return reading.is_sound or not self.again.is_one_more_try(reading.step)

    def _some_can_be_run(self) -> bool:
        return bool(self.guard.kept) and can_be_run(self.guard.kept[0])

    def _look_at_weights_together(self) -> None:
        """Look whether the weights of some process are to blame: a step that is never finite has brought all of them here."""
        broken = self._broken_weights()
        if any(count for (count,) in self.ranks.group.exchange([broken])):
            self.desk.look({"weights_nonfinite": float(broken)})
            self.ranks.vote_now()

    def _leave_all_to_the_loop(self) -> list[AppliedStep]:
        self.guard.make_up()
        return []

    def raised_in_step(self, error: BaseException) -> bool:
        """Answer an exception that has left a step; say whether the loop goes on all the same."""
        if not isinstance(error, Exception):
            return False
        if self.mode is Mode.HEAL and is_device_lost(error):
            try:
                lose_device(self, error)
            except Exception as lost:
                self.end("device_lost", error)
                raise lost from error
        window = self.failed = self.guard.at_hand
        try:
            is_tried_again = self.mode is Mode.HEAL and (
                self.failing.goes_on(window, error)
                if self.ranks.is_one_of_several
                else self.again.raised(window, error)
            )
            if not is_tried_again:
                if self.mode is Mode.HEAL and self.ranks.is_one_of_several:
                    self.less_memory.failed_alone(window, error)
                raised(self, error)
        finally:
            self.failed = None
        if self.mode is not Mode.HEAL:
            return False
        self.guard.abandon_step()
        goes_on = (self.pending.is_returning or self.again.is_asked) and self.interrupts.received is None
        if goes_on:
            let_go(error)
            return True
        self.lost(error, is_told=True)
        return False

    def lost(self, error: Exception, *, is_told: bool = False) -> None:
        """End a run that an exception has ended: what can be saved is saved, and it is said why nothing more is tried."""
        if not is_told:
            raised(self, error)
        if self.mode is Mode.HEAL:
            self.pending.dropped("it is out of reach")
            self.note("emergency", self.emergency_checkpoint())
            say_given_up(self.abilities.stop_reason or "nothing in this process can help", error)
        self.end("exception", error)

    def all_are_here(self) -> None:
        """Take note that all processes are at this place, because a vote has brought them there."""
        self.ranks.is_agreed = True

    def may_be_interrupted(self) -> bool:
        """Say whether a signal can be answered here: all processes end at the same step, or none."""
        return not self.ranks.is_one_of_several or self.ranks.is_agreed

    def emergency_checkpoint(self) -> str:
        """Write a checkpoint of the last complete step; by all processes, where all are here."""
        if not self.ranks.is_one_of_several:
            return super().emergency_checkpoint()
        return self.ranks.save(wait=True) if self.ranks.is_agreed else NOT_TOGETHER

    # -- saving --------------------------------------------------------------------------------------

    def save(self, *, as_it_is: bool = False) -> str:
        """Write a checkpoint of this step, once everything about it is known.

        One whose weights are not finite is only written `as_it_is`, where the user has asked for it, and is marked sick.
        """
        self.know_everything()
        if self.ranks.is_one_of_several:
            said = self.ranks.save(wait=False, as_it_is=as_it_is)
        else:
            said = emergency_checkpoint(self, as_it_is=as_it_is)
        logger.info("%s", said)
        if not self.ranks.is_one_of_several and not self.is_saved(self._step()):
            self.rollback.suspect()  # of weights that are not finite nothing is on disk that counts: a return mends them
        return said

    def _must_know(self) -> bool:
        every = self.save_every
        return bool(super()._must_know() or (every and self._step() % every == 0))

"""Returning to earlier states, as a session of a trainer sees it: everything, or nothing where it is not possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.failure import FailureType, Severity
from ...core.lifecycle import Case
from ..ending.device_errors import is_device_lost
from ..run.abilities import TrainerAbilities
from ..run.moves import PendingMove, ReturnTo
from ..wrapping import Wrapping
from .abilities import RollbackAbilities
from .best_checkpoint import NotWrittenError
from .in_loop import RollbackLoop
from .left_out import LeftOut, left_out_of
from .left_state import LeftState, facts_for_takeover
from .memory_snapshots import SnapshotDamagedError
from .restart import MemoryRestart
from .shared_states import ENDED_FOR_GOOD
from .state_keeper import StateKeeper
from .state_returns import Arrival, StateReturns

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ...core.goodput import TimeAccount
    from ...snapshots.verdicts import StateVerdict
    from ..run.run_desk import RunDesk
    from ..step.make_up import AppliedStep
    from ..step.step_guard import StepGuard
    from ..step.step_reading import StepReading
    from .checkpoint_care import CheckpointCare


LEAVING = frozenset({FailureType.LOSS_SPIKE, FailureType.DIVERGENCE})


class Returns(NamedTuple):
    """What returning to earlier states has come to."""

    times: int = 0
    steps_lost: int = 0
    seconds_lost: float = 0.0
    """The time that undone steps had taken, and that of carrying out plans and reflexes."""


class RollbackCare:
    """Takes states while a trainer runs, and returns to one of them when a plan says so."""

    def __init__(
        self,
        trainer: Any,
        guard: StepGuard,
        config: HealingConfig,
        account: TimeAccount,
        *,
        may_act: bool,
        kind: type[StateReturns] = RollbackLoop,
        abilities: tuple[type[TrainerAbilities], type[RollbackAbilities]] = (TrainerAbilities, RollbackAbilities),
    ) -> None:
        self.trainer = trainer
        self.guard = guard
        self._account = account
        self.keeper: StateKeeper | None = None
        is_wanted = may_act and config.snapshot_memory_fraction > 0
        can_return = kind is not RollbackLoop or RollbackLoop.is_possible(trainer) or MemoryRestart.is_possible(trainer)
        if is_wanted and can_return:
            self.keeper = StateKeeper(trainer, guard, config, kind)
            self.keeper.frozen.compares = config.runs_rule("unexplained-state")
        self._kinds = abilities
        """What the abilities of a run are made of, without states to return to and with them."""
        self.on_return: Callable[[Arrival], None] = _nobody_listens
        """Is told that the run has returned."""
        self._abilities: RollbackAbilities | None = None
        self._moves: PendingMove | None = None
        self._desk: RunDesk | None = None
        self._wrapping = Wrapping()
        self._is_leaving = False

    def abilities(self, save_now: Callable[[], str], may_change_loss: bool) -> TrainerAbilities:
        """Return what can be done to the trainer."""
        scale = self.guard.rate_scale
        if self.keeper is None:
            found = self._kinds[0](self.trainer, scale, save_now)
        else:
            found = self._abilities = self._kinds[1](self.trainer, scale, save_now, self.keeper)
            self._abilities.undone = self._account.returned
        found.may_change_loss = may_change_loss
        self._moves = found.pending
        return found

    def attach(
        self, desk: RunDesk, raised: Callable[[Exception], object], epoch_is_over: Callable[[], None] = lambda: None
    ) -> None:
        """Stand around the data as they are delivered, inside of what makes steps up: the guard comes afterwards."""
        keeper, self._desk = self.keeper, desk
        if keeper is None:
            return
        keeper.signal, keeper.note, keeper.look, keeper.on_return = desk.signal, desk.note, desk.look, self._returned
        keeper.shared.past_of = desk.healer.past_of
        keeper.cases = lambda: desk.healer.care.cases
        desk.brought_to_light = keeper.brought_to_light
        keeper.loop.on_error = lambda error: self._answer(error, raised)
        keeper.loop.on_epoch_over = epoch_is_over
        keeper.loop.attach(self._wrapping)

    def ended(self, exit_reason: str, *, is_unsaved: bool = False) -> None:
        """Leave the newest states to the next attempt where there may be one, or where the disk has none as new."""
        if self.keeper is not None:
            self.keeper.shared.end(for_good=exit_reason in ENDED_FOR_GOOD and not is_unsaved)

    def kept_step(self) -> int | None:
        """Return the step of the newest state in shared memory, None where there is none."""
        return self.keeper.shared.newest_step() if self.keeper is not None else None

    def detach(self) -> None:
        """Put the trainer's methods back and let go of all states."""
        if self.keeper is not None:
            self.keeper.shared.end(for_good=False)  # nobody said how it ended
            self.keeper.loop.end()
        self._wrapping.restore()

    def close(self) -> None:
        """Let go of everything that holds the trainer, once training is over."""
        keeper, self.keeper, self._desk, self._abilities = self.keeper, None, None, None
        self.on_return = _nobody_listens
        if keeper is not None:
            keeper.let_go()

    # -- the loop ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start anew: `train()` was entered."""
        if self.keeper is not None and self.keeper.loop.old is not None:
            self.keeper.loop.old.training_begins()
        if self.keeper is not None:
            self._can_be_taken_over(self.keeper)
            self.keeper.begin()

    def _can_be_taken_over(self, keeper: StateKeeper) -> None:
        """Note what a later process must have in common with this one; see that it has, where it goes on with another's state."""
        if keeper.settings.shared_memory:
            frozen = keeper.loop.snapshots.leaves_out_frozen()
            keeper.shared.facts = facts_for_takeover(self.trainer, leaves_out_frozen=frozen)
        restart = keeper.loop.restart
        if restart.left is not None:
            restart.left.compare(self.trainer, keeper.shared.facts, restart.steps_per_epoch)
            restart.left.fill(self.trainer)

    def enters_from_memory(self) -> bool:
        """Say whether `train()` was entered for a state in memory, of this process or another: it need not be on disk."""
        return self.keeper is not None and self.keeper.loop.restart.entered_for is not None

    def epoch_number(self) -> int:
        """Return which epoch is about to begin, or to be entered in its middle, counted from zero."""
        entered_for = None if self.keeper is None else self.keeper.loop.restart.entered_for
        if entered_for is not None:  # the trainer's state is put back later
            return entered_for.place.epoch.number
        return int(self.trainer.state.epoch or 0)

    def epoch_begins(self) -> None:
        """Note where the data of an epoch begin, before its loader is iterated over."""
        if self.keeper is not None and self.keeper.loop.old is not None:
            self.keeper.loop.old.epoch_begins()

    def is_due(self) -> bool:
        """Say whether the state of this moment is to be taken, for which all steps before it must be known."""
        return self.keeper is not None and self.keeper.is_due()

    def step_begins(self, step_time_s: float, *, is_due: bool) -> None:
        """Take the state before the step where it is time."""
        if self.keeper is not None:
            self.keeper.step_begins(step_time_s, is_due=is_due)

    def steps_end(self, steps: Iterable[int], cases: Iterable[Case]) -> None:
        """Judge the states by what is open after some steps."""
        if self.keeper is not None:
            self.keeper.observed(steps, cases)
            if self.keeper.loop.old is not None:
                self.keeper.loop.old.settle()

    def secure(self, cases: Iterable[Case], checkpoints: CheckpointCare) -> None:
        """Write the newest good state to disk when the loss begins to leave its level: the process may not survive it.

        What has changed the weights besides training shows in an audit, and is answered by it: neither data nor rate are to blame.
        """
        is_leaving = any(case.incident.failure in LEAVING and case.incident.severity > Severity.INFO for case in cases)
        was_leaving, self._is_leaving = self._is_leaving, is_leaving
        if not is_leaving or was_leaving or self.keeper is None or self._desk is None or self._abilities is None:
            return
        self.suspect()
        if str(getattr(self.trainer.args.save_strategy, "value", "no")) == "no":
            return  # the user wants no checkpoints
        own = self._abilities.own_checkpoints
        newest, _ = own.newest_usable(int(self.trainer.state.global_step) + 1)
        on_disk = newest.step if newest else 0
        while (good := self.keeper.newest_good()) is not None and good.step > on_disk:
            try:
                with checkpoints.saving_what_is(good.verdict):
                    said = self.keeper.write_to_disk(good, own)
            except SnapshotDamagedError as error:
                self.keeper.damaged(good, str(error))
                continue  # with an older one
            except (MemoryError, OSError, RuntimeError) as error:  # it is a precaution, and may not cost the run
                if is_device_lost(error):
                    raise
                self._desk.note(
                    "not-secured", f"step {good.step}: {_why(error, checkpoints.not_written.get(good.step))}"
                )
                return
            self._desk.note("secured", f"the loss has left its level: {said}, a state that has proved itself")
            return

    def read(self, reading: StepReading) -> None:
        """Take note of an update, and see whether the first one after a return is what it was the first time."""
        if self._abilities is not None and self.keeper is not None:
            if reading.is_applied:
                self.keeper.applied(reading.step, reading.numbers, reading.norm * reading.coefficient)
            else:
                self.keeper.audit.held_back(reading.step)
            rejected = self.keeper.first_loss(reading.step, reading.loss) if reading.has_loss else None
            if rejected is not None and self._abilities.pending.asked is None:
                self._abilities.pending.ask(rejected)

    def suspect(self) -> None:
        """Look at the state of this moment: a step was not finite whatever the data, or an outlier."""
        if self._abilities is not None and not self._abilities.pending.is_returning:
            self._abilities.keeper.audit_now()

    def frozen_is_broken(self, *, look: bool = False) -> bool:
        """Say whether weights that no state holds are known to be broken; looks at all of them where that is asked for."""
        if self.keeper is None:
            return False
        if (
            look
            and self._abilities is not None
            and not (self._abilities.pending.is_returning or self.guard.lets_through)
        ):
            self.keeper.tell_of_frozen()
        return self.keeper.frozen.broken is not None

    def audit_checkpoint(self) -> StateVerdict | None:
        """Look at a state that is written to disk, so that later findings do not throw suspicion on it."""
        if self._abilities is None or self._abilities.pending.is_returning:
            return None
        return self._abilities.keeper.audit_now(is_kept=True)

    def made_up(self, applied: AppliedStep) -> None:
        """Take note of an update that was made up."""
        if self.keeper is not None:
            self.keeper.applied(applied.step, applied.numbers, applied.norm)

    def enter_anew(self, move: ReturnTo) -> str | None:
        """Return what `train()` is to resume from in order to return to a state; None where that cannot be done."""
        return self.keeper.loop.enter_anew(move) if self.keeper is not None else None

    def open_shared(self, *, starts_over: bool) -> None:
        """Take the run's folder in shared memory, before its states are read or in order to remove them."""
        if self.keeper is not None:
            self.keeper.shared.open(starts_over=starts_over)

    def go_on_at(self, left: LeftState) -> str:
        """Return what `train()` is to resume from in order to go on at a state that another process has left."""
        assert self.keeper is not None, "who takes no states over has not looked for any"
        self.keeper.loop.data.left_out |= left.left_out
        return self.keeper.loop.restart.prepare_for(left, self._take_over)

    def trains_no_step_too_many(self) -> bool:
        """Have the loop end where the run has all its steps already; it looks only after a step. Needs `_run_epoch`."""
        trainer = self.trainer

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def _run_epoch(*args: Any, **kwargs: Any) -> None:
                if int(trainer.state.global_step) < int(trainer.state.max_steps):
                    original(*args, **kwargs)
                else:
                    trainer.control.should_training_stop = True

            return _run_epoch

        if RollbackLoop.is_possible(trainer):
            self._wrapping.wrap(trainer, "_run_epoch", around)
        return RollbackLoop.is_possible(trainer)

    def _take_over(self, left: LeftState) -> None:
        assert self.keeper is not None, "a training is under way"
        left.restore(self.trainer, self.guard)
        self.keeper.updates = left.updates
        if self._desk is not None:
            self._desk.go_on_with(left.history)

    def goes_on_from(self, path: str | None) -> None:
        """Forget a return to a state in memory where training goes on from somewhere else after all."""
        if self.keeper is not None and path != self.keeper.loop.restart.path:
            self.keeper.loop.restart.cancel()

    def host_bytes(self) -> int:
        """Return what this process keeps of the host's memory in order to return."""
        return self.keeper.loop.private_bytes if self.keeper is not None else 0

    def figures(self) -> dict[str, float]:
        """Return how often the run has returned and what that has cost; nothing where it has not."""
        returns = self.returns()
        if not returns.times:
            return {}
        # Steps trained in all: unlike the step it never goes back, for those who plot what trackers were given.
        trained = int(self.trainer.state.global_step) + returns.steps_lost
        return {
            "healing/rollbacks": returns.times,
            "healing/steps_lost": returns.steps_lost,
            "healing/seconds_lost": round(returns.seconds_lost, 3),
            "healing/trained_steps": trained,
        }

    def left_out(self) -> LeftOut | None:
        """Return which data the run has left out; None where there are none."""
        batches = left_out_of(self.keeper.loop.data) if self.keeper is not None else frozenset()
        return LeftOut(int(self.trainer.args.train_batch_size), batches) if batches else None

    def leave_out(self, before: LeftOut | None) -> None:
        """Leave out what the run that is gone on with had left out, as long as its batches are the same."""
        if before is not None and self.keeper is not None:
            is_same = before.batch_size == int(self.trainer.args.train_batch_size)
            self.keeper.loop.data.left_out |= before.batches if is_same else set()

    def returns(self) -> Returns:
        """Return how often the run has returned, the steps that were undone, and the time that all of healing has taken."""
        spent_s = self._desk.seconds_acting if self._desk is not None else 0.0
        moves, lost_s = self._moves, self._account.undone_s + spent_s
        return Returns(moves.returns, moves.steps_lost, lost_s) if moves else Returns(seconds_lost=lost_s)

    def _answer(self, error: Exception, raised: Callable[[Exception], object]) -> ReturnTo | None:
        """Have an exception looked at while the loop is still there to return to an earlier state in."""
        raised(error)
        if self._abilities is None or not self._abilities.pending.is_returning:
            return None  # what else is asked for begins outside of the loop
        move = self._abilities.pending.take()
        if not isinstance(move, ReturnTo):
            return None
        if self._desk is not None:
            self._desk.forget_what_waits()
        return move

    def _returned(self, arrival: Arrival) -> None:
        self.on_return(arrival)


def _why(error: Exception, refused: str | None) -> str:
    """Say why a state is not on disk, in the words of the disk where it has refused it."""
    if refused is not None:
        return f"it could not be written: {refused}"
    return str(error) if isinstance(error, NotWrittenError) else f"{type(error).__name__}: {error}"


def _nobody_listens(_arrival: Arrival) -> None:
    """Stand for a listener that is gone."""

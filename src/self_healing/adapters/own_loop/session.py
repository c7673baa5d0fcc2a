"""One guarded `train()` of a trainer with a loop of its own: signals out of it, plans into it."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...core.failure import FailureType, Mode
from ...core.goodput import Spending, TimeAccount
from ...core.signal import Raised, SnapshotDropped, SnapshotTaken
from ..ending.interrupts import interrupts_of
from ..exceptions import describe
from ..memory.memory_errors import RETRIABLE, is_out_of_memory, let_go
from ..run.log_figures import GOODPUT
from ..run.moves import ReturnTo
from ..run.reflexes import Reflex
from ..run.run_desk import RunDesk, facts_of_run
from ..run.time_spent import TimeSpent
from ..step.learning_rate import rates_of
from ..trainer.logged_health import LoggedHealth
from ..trainer.trackers import TrackerFence
from ..wrapping import Wrapping
from .abilities import OwnLoopAbilities
from .batches import Batches
from .recognised import why_only_watched
from .saving import Saving
from .update_guard import UnsoundUpdate, UpdateGuard
from .update_state import UpdateState

if TYPE_CHECKING:
    from ...config import HealingConfig


class LeaveUpdate(Exception):  # no error: it only unwinds the loop
    """Leaves the loop at the end of an update: for its beginning, or for good."""


class OwnLoopSession:
    """Emits the signals of one training, and takes it back to the beginning of an update where that helps."""

    def __init__(self, trainer: Any, config: HealingConfig, mode: Mode) -> None:
        self.trainer = trainer
        self.config = config
        self.spent = TimeSpent(TimeAccount(time.perf_counter))
        self._why_only_watched = why_only_watched(trainer)
        if mode is Mode.HEAL and self._why_only_watched is not None:
            mode = Mode.ADVISE
        self.mode = mode
        acts = self.acts = mode is Mode.HEAL
        self.guard = UpdateGuard(trainer, acts=acts, lets_through=config.nan_action == "warn")
        self.state = UpdateState(trainer, memory_fraction=config.snapshot_memory_fraction)
        self.batches = Batches(trainer.dataloader, self._update_begins) if acts else None
        self.abilities = OwnLoopAbilities(trainer, self.guard, self.state, self.batches)
        self.pending = self.abilities.pending
        # It cannot resume: what was cut short in the folder is not gone on with.
        self.desk = RunDesk(
            trainer.args, config, self.abilities, mode=mode, step=self.step, account=self.spent.account, heals=acts,
            starts_over=True,
        )  # fmt: skip
        self.pending.tell, self.pending.step = self.desk.tell_of_move, self.step
        self.saving = Saving(trainer, self.guard, self.state)
        self.interrupts = interrupts_of(config, trainer.args)
        self.interrupted_by: signal.Signals | None = None
        self.repeats = 0
        """Updates that were begun anew."""
        self._tried: set[str] = set()
        """What the update at hand was begun anew for, each once, before a plan is asked for."""
        self._returns: ReturnTo | None = None
        """Where the next call of `train()` begins."""
        self._is_entered = False
        self._updates = int(getattr(trainer.args, "num_total_batches", 0))
        self._began_s = time.perf_counter()
        self._trackers = TrackerFence(trainer.args, self.desk.note, self.figures)
        self._changes = Wrapping()
        self._dry_run_steps = config.dry_run_steps
        self.desk.open()  # last: whoever fails to make a session has nothing to close

    # -- life ----------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the guard into the trainer, and say what it cannot do there."""
        trainer, changes = self.trainer, self._changes
        kind = type(trainer).__name__
        if self._why_only_watched is not None:
            self.desk.note("own-loop", f"{self._why_only_watched}: it is watched, and plans are only shown")
        else:
            told = f"{kind} runs a loop of its own: an update that fails is begun anew, and earlier ones are final"
            self.desk.note("own-loop", told, level=logging.INFO)
        if self._dry_run_steps:
            self.desk.note("dry-run", f"dry_run_steps does nothing for a {kind}: only the usual loop can be rehearsed")
        self.guard.attach(changes)
        changes.wrap(trainer.callback_handler, "on_train_begin", self._around_train_begin)
        if self.acts:
            changes.replace(trainer, "dataloader", self.batches)
            changes.wrap(trainer, "log", self._around_log)
            self._keep_samples_in_their_places()
            self.saving.attach(changes)
            self.interrupts.install()
            self.interrupts.while_waiting = self.spent.stalled
        LoggedHealth(trainer, self.desk).attach(changes)
        self._trackers.attach(trainer.callback_handler.callbacks, self.desk.alerts, is_fenced=self.acts)
        self.spent.attach(trainer, None, changes)

    def close(self) -> None:
        """End the session: the trainer is as it was, the ledger is written, the directory free."""
        try:
            self.interrupts.restore()
            self.abilities.put_back()
            self._changes.restore()
            self._trackers.detach()
        finally:
            self.state.forget()
            self.pending.close()
            self.desk.close()

    def ended(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended."""
        self.desk.finish()
        self.pending.dropped(f"the run has ended ({exit_reason})")
        self._trackers.tell_losses()
        self.spent.account.steps_over()
        self.spent.tell(self.desk)
        self.desk.ended(exit_reason, error, self.figures({}))

    def step(self) -> int:
        """Return how many updates are done."""
        return int(self.trainer.state.global_step)

    def figures(self, _logs: Mapping[str, Any]) -> dict[str, float]:
        """Return what trackers and the postmortem are told."""
        return {
            "healing/recovery_attempts": self.desk.healer.memory.total,
            "healing/nan_count": self.guard.nan_count,
            "healing/skipped_steps": self.guard.skipped_steps,
            "healing/repeated_updates": self.repeats,
            "healing/lr_scale": self.guard.rate_scale.value,
            GOODPUT: round(self.spent.goodput(), 6),
        }

    # -- what the loop calls -------------------------------------------------------------------------

    def _around_train_begin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def on_train_begin(args: Any, state: Any, control: Any) -> Any:
            if self._is_entered:  # the same training goes on: nobody else is told that it begins
                self._put_back()
                return self.trainer.control
            self._is_entered = True
            control = original(args, state, control)
            facts = facts_of_run(args, state, self.trainer.model)
            self.desk.learn({**facts, "trainer": type(self.trainer).__name__, "skips_by": "host"})
            self.desk.seen_at(self._trackers.begin())
            if not self.acts:
                self.spent.account.steps_begin(self.step())
            return control

        return on_train_begin

    def _update_begins(self) -> None:
        """Set the state before an update aside, if there is room."""
        self.spent.account.steps_begin(self.step())
        self._tried.clear()
        self.guard.update_begins()
        self._began_s = time.perf_counter()
        why = self.state.why_no_room() if self.step() <= 1 else None  # then the moments are there too
        if why is not None:
            self.desk.note("no-room", f"{why}: an update that fails ends the run")
            self.state.forget()
        elif self.state.is_kept or self.step() == 0:
            before = self.state.key if self.state.is_kept else None
            with self.spent.spent_on(Spending.SNAPSHOTTING):
                self.state.take()
            if before is not None:
                self.desk.signal(SnapshotDropped(step=self.step(), time_s=time.time(), key=before))
            # The rules go back to what they knew then, where a whole update is undone.
            self.desk.signal(SnapshotTaken(step=self.step(), time_s=time.time(), key=self.state.key))
        self.guard.may_return = self.state.is_kept

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Look at the weights before anything is said of the update."""

        def log(*args: Any, **kwargs: Any) -> Any:
            broken = self.guard.broken_weights()
            if broken and self.state.is_kept and "weights" not in self._tried:
                raise UnsoundUpdate("weights", f"{broken} parameters are not finite after update {self.step()}")
            if broken:
                self.desk.look({"weights_nonfinite": float(broken)})
                self._go_where_asked()
            return original(*args, **kwargs)

        return log

    def end_of_update(self) -> None:
        """Let the healer look at a finished update, and leave the loop where something was asked for."""
        self.spent.account.step_done(self.step())
        self.spent.tell_now_and_then(self.desk)
        values = {**self.guard.values(), "step_time_s": time.perf_counter() - self._began_s}
        groups = getattr(self.trainer.optimizer, "param_groups", None)
        if groups:
            values["learning_rate"] = rates_of(groups)[0] * self.guard.rate_scale.value
        self.desk.look_later(self.step(), values)
        self.desk.settle()
        if self.acts:
            self._answer_interrupt()
            self._go_where_asked()

    def _go_where_asked(self) -> None:
        if self.pending.stop_reason is not None:
            raise LeaveUpdate
        move = self.pending.take()
        if isinstance(move, ReturnTo):
            self._returns = move
            raise LeaveUpdate

    def _answer_interrupt(self) -> None:
        """Save what is trained where a signal has come, and end there unless it was only a warning."""
        number = self.interrupts.take()
        if number is None:
            return
        self.desk.note("interrupted", f"{number.name} came; {self.saving.save_now()}")
        if self.interrupts.is_warning(number):
            self.interrupts.pass_on(number)
            return
        self.interrupted_by = number
        self.pending.dropped(f"{number.name} came, and there is no time to train anything again")
        raise LeaveUpdate

    def _keep_samples_in_their_places(self) -> None:
        """Have sample completions made after the same updates, also where the loop counts from one again."""
        trainer = self.trainer
        if not hasattr(trainer, "generate_completions") or not getattr(trainer, "sample_generations_freq", 0):
            return
        every = int(trainer.sample_generations_freq)

        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def generate_completions(*args: Any, **kwargs: Any) -> Any:
                self.guard.phase = "samples"
                is_due = (self.step() - 1) % every == 0
                return self._show_samples(lambda: original(*args, **kwargs)) if is_due else None

            return generate_completions

        self._changes.replace(trainer, "sample_generations_freq", 1)
        self._changes.wrap(trainer, "generate_completions", around)

    def _show_samples(self, generate: Callable[[], Any]) -> Any:
        """Have samples made; the run does not need them, so that none are shown where memory does not suffice."""
        try:
            return generate()
        except RETRIABLE as error:
            if not is_out_of_memory(error) or (self.state.is_kept and "memory-samples" not in self._tried):
                raise
            failed = error
        let_go(failed)
        self.desk.note("no-samples", f"memory does not suffice for samples after update {self.step()}: none are shown")
        return None

    # -- when an update has failed -------------------------------------------------------------------

    def begin_anew(self, error: Exception, kind: str) -> bool:
        """Have the update begun anew, once for each kind of trouble and without asking; say whether it will be."""
        if not self.state.is_kept or kind in self._tried:
            return False
        self._tried.add(kind)
        is_memory = kind.startswith("memory")
        self.desk.reflex(
            Reflex(
                failure=FailureType.OOM if is_memory else FailureType.NAN_LOSS,
                incident="out-of-memory" if is_memory else "update-not-finite",
                because=str(error).strip().split("\n", 1)[0][:300],
                actions=("clear-cache",) if is_memory else ("skip-step",),
                said=f"update {self.state.step + 1} is begun anew, from the state before it",
                step=self.state.step,
                details={"phase": self.guard.phase},
            )
        )
        self._returns = ReturnTo(self.state.key)
        return True

    def ask(self, error: Exception) -> bool:
        """Have a plan made for an exception and carried out; say whether an update is begun anew."""
        self.abilities.left_by = error
        try:
            step = self.state.step if self.state.is_kept else self.step()
            rank = int(self.trainer.args.process_index)
            self.desk.signal(Raised(step=step, time_s=time.time(), rank=rank, **describe(error)))
        finally:
            self.abilities.left_by = None
        move = self.pending.take()
        self._returns = move if isinstance(move, ReturnTo) else None
        return self._returns is not None

    def is_returning(self) -> bool:
        """Say whether `train()` is to be called again."""
        return self._returns is not None

    def enter_again(self) -> None:
        """Prepare the next call of `train()`: the updates that are left, the batch at hand first."""
        assert self.batches is not None
        self.spent.account.steps_left()
        self.repeats += 1
        self.desk.forget_what_waits()
        # The loop counts its updates from one.
        self._changes.replace(self.trainer.args, "num_total_batches", self._updates - self.state.step)
        self.batches.give_again()

    def _put_back(self) -> None:
        move, self._returns = self._returns, None
        assert move is not None, "train() is entered again only to return"
        from_step = self.step()
        self.state.put_back()
        self.spent.account.steps_begin(self.step())
        self.guard.update_begins()
        self._began_s = time.perf_counter()
        # A second time nothing is gained by it: what is not finite again is left out.
        self.guard.may_return = "gradient" not in self._tried
        if self.pending.under_way is not None:
            self.pending.arrived(move, step=self.state.step, from_step=max(from_step, self.state.step))

"""When states of a run are taken, how far each can be trusted, and which one to return to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...core.incident import Incident
from ...core.signal import Signal, SnapshotDropped, SnapshotTaken
from ...snapshots.audit import Finding
from ...snapshots.budget import free_memory, slots_within
from ...snapshots.spacing import FEWEST_SLOTS, Pace, Slot, failures_per_second, slot_for, steps_between
from ...snapshots.verdicts import (
    Condition,
    OpenIncident,
    SavedState,
    StateVerdict,
    Tier,
    after_incident,
    after_observation,
    at_depth,
    newest_for_a_crash,
    newest_for_an_incident,
    verdict_when_taken,
)
from ..trainer.device_errors import is_device_lost
from .best_checkpoint import keeping_all_checkpoints
from .first_losses import FirstLosses
from .furthest import furthest_sound
from .harm import is_unhealthy, may_have_harmed
from .in_loop import RollbackLoop, RollBackTo
from .memory_snapshots import Snapshot
from .shared_states import SharedStates
from .state_audit import StateAudit

if TYPE_CHECKING:
    from ..trainer.trainer_guard import TrainerGuard

MOST_SLOTS = 6
"""States besides the first one; with exponential ages more would add little."""


class Settings(Protocol):
    """What the user may say about it."""

    snapshot_every_steps: int | None
    max_lost_steps: int
    snapshot_memory_fraction: float
    good_after: int
    shared_memory: bool
    shared_memory_max_fraction: float


class StateKeeper:
    """Takes states of one training and judges them by what is observed afterwards."""

    def __init__(
        self,
        trainer: Any,
        guard: TrainerGuard,
        settings: Settings,
    ) -> None:
        self.trainer = trainer
        self.settings = settings
        self.loop = RollbackLoop(
            trainer,
            slots=1 + MOST_SLOTS,
            guard=guard,
            tell=self._tell,
            make_room=self._make_room,
            on_return=self._returned,
        )
        self.loop.choose_instead = self._older_than
        self.loop.before_return = self.about_to_return
        self.shared = SharedStates(trainer, settings, self._tell, self.loop)
        self.loop.snapshots.backing = self.shared.slot
        self.states: tuple[SavedState, ...] = ()
        self.on_return: Callable[[int], None] = lambda _step: None
        """Is told the step that the run has returned to."""
        self.is_on = settings.snapshot_memory_fraction > 0
        self.signal: Callable[[Signal], object] = lambda _signal: None
        self.note: Callable[[str, str], None] = lambda _name, _text: None
        self.look: Callable[[Mapping[str, float]], None] = lambda _values: None
        """Is given what there is to observe about states."""
        self.audit = StateAudit(trainer, self._tell)
        self.updates = 0
        """Updates that the weights of this moment hold."""
        self._is_unexplained = False
        """The last audit has found something that training cannot have done."""
        self._unmeasured: list[str] = []
        """States whose norms are on their way."""
        self._slots: int | None = None
        """States besides the first one that memory has room for, once that is known."""
        self._next = 0
        """The step at which the next state is taken."""
        self._pace = Pace()
        self._took_at = -1
        """The step at which the last state was taken."""
        self._began_s = time.perf_counter()
        self._open: OpenIncident | None = None
        self._losses = FirstLosses(self._tell)

    def let_go(self) -> None:
        """Hold on to nothing any more: the trainer and its data may go as soon as their owner lets go of them."""
        self.loop.let_go()
        vars(self).clear()

    def applied(self, step: int, rate: float, gradient: float) -> None:
        """Take note of an update."""
        self.updates += 1
        self.audit.applied(step, rate, gradient)

    def _tell(self, name: str, text: str) -> None:
        self.note(name, text)

    # -- taking --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start anew: `train()` was entered, with an optimizer and data of its own, unless it was for one of the states."""
        if self.loop.restart.has_begun():
            return
        self._drop(self.states)
        self._next = self.updates = self._step()
        self._began_s = time.perf_counter()
        self._open = None
        self._losses.begin()
        self._unmeasured.clear()
        self.audit.begin()

    def is_due(self) -> bool:
        """Say whether the state of this moment is to be taken before the next step; later where memory is not ready."""
        step = self._step()
        is_time = self.is_on and (step >= self._next or step == self.audit.found_at)  # does it come back there?
        is_exact = self.settings.snapshot_every_steps is not None
        return is_time and self._has_room() and self.loop.snapshots.has_memory(wait=is_exact)

    def step_begins(self, step_time_s: float) -> None:
        """Take the state between two steps where it is time; the next step's data must be there already."""
        step = self._step()
        self._pace.stepped(step_time_s, took_state=self._took_at == step - 1)
        if not self.is_due():
            return
        began_s = time.perf_counter()
        try:
            snapshot = self.loop.take()
        except (MemoryError, OSError, RuntimeError) as error:  # of torch too: no memory, a tensor cannot be read
            if is_device_lost(error):  # found out here by chance: the states that there are must not be given up for it
                raise
            self._stop_taking(f"the state of step {step} could not be taken ({type(error).__name__}: {error})")
            return
        if snapshot is None:  # a step before it is still to be made up
            return
        self._pace.was_busy(time.perf_counter() - began_s)
        snapshot.updates = self.updates
        self._forget_what_is_gone()
        self.states = (*self.states, SavedState(key=snapshot.key, step=step, tier=Tier.MEMORY))
        self._unmeasured.append(snapshot.key)
        self.signal(SnapshotTaken(step=step, time_s=time.time(), key=snapshot.key))
        self._took_at = step
        self._next = step + self._interval(step)
        if self._slots is not None:
            self.loop.snapshots.has_memory()  # for the next one, while training goes on
        self._judge_what_is_measured()
        self._share()

    def _share(self) -> None:
        self.shared.update(self.states, self.loop.snapshots.get)

    def _interval(self, step: int) -> int:
        settings = self.settings
        between = steps_between(
            stall_s=self._pace.stall_s, step_s=self._pace.step_s,
            failure_rate=failures_per_second(self.loop.returns, time.perf_counter() - self._began_s),
            max_lost_steps=settings.max_lost_steps, forced=settings.snapshot_every_steps,
        )  # fmt: skip
        if settings.snapshot_every_steps is not None:
            return between
        since = step - self.states[0].step
        # At first after 1, 2, 4, 8 ... steps: a young run has little to fall back on.
        return min(between, max(1, since))

    def _has_room(self) -> bool:
        """Say whether the state of this moment can be kept; where memory is short none is, with a word about it."""
        if self._slots is None or not self.states:
            # At first the optimizer holds nothing yet, so that only the second time shows what a state takes.
            wanted, needed = (MOST_SLOTS, FEWEST_SLOTS) if self.states else (1, 1)
            size, free = self.loop.snapshots.expected_nbytes(), free_memory()
            fraction, ranks = self.settings.snapshot_memory_fraction, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            slots = slots_within(size, free=free, fraction=fraction, local_ranks=ranks, most=wanted)
            if slots < needed:
                self._stop_taking(f"a state takes {size:,} bytes of host memory, of which {free:,} are free")
                return False
            if self.states:
                self._slots = slots = self.shared.limited(slots, size, FEWEST_SLOTS)
                self.loop.snapshots.slots = 1 + slots
        return len(self.states) <= (self._slots or 0) or self._place() is not None

    def _stop_taking(self, because: str) -> None:
        """Go on without states: nothing about them may cost a run."""
        self.is_on = False
        self.note(
            "no-snapshots",
            f"{because}: none is kept in memory, and a return goes to the newest checkpoint on disk "
            f"(snapshot_memory_fraction = {self.settings.snapshot_memory_fraction:g})",
        )
        self._drop(self.states)
        self._share()

    def _place(self) -> int | None:
        """Return which of the states after the first one makes room; None where each is worth more than a new one."""
        if not self.states:
            return 0
        slots = [Slot(each.step, each.verdict.condition) for each in self.states[1:]]
        return slot_for(slots, self._step(), first_step=self.states[0].step)

    def _make_room(self, kept: Sequence[Snapshot]) -> Snapshot:
        """Choose the state that makes room for the one that is being taken."""
        key = self.states[1 + (self._place() or 0)].key
        return next(each for each in kept if each.key == key)

    def _forget_what_is_gone(self) -> None:
        kept = {snapshot.key for snapshot in self.loop.snapshots}
        for state in self.states:
            if state.key not in kept:
                self.signal(SnapshotDropped(step=self._step(), time_s=time.time(), key=state.key))
        self.states = tuple(state for state in self.states if state.key in kept)

    def _drop(self, states: Iterable[SavedState]) -> None:
        for state in states:
            self.loop.snapshots.drop(state.key)
        self._forget_what_is_gone()

    def _judge_what_is_measured(self) -> None:
        """Judge the states whose norms have come from the device, and report what training cannot have done to them."""
        while self._unmeasured:
            snapshot = self.loop.snapshots.get(self._unmeasured[0])
            norms = snapshot.norms() if snapshot is not None else {}
            if norms is None:
                return
            key = self._unmeasured.pop(0)
            if snapshot is not None and self.state_of(key) is not None:
                self._judge(snapshot, norms)

    def _judge(self, snapshot: Snapshot, norms: Mapping[str, float]) -> None:
        step = snapshot.step
        verdict = verdict_when_taken(step, norms=norms, open_incident=self._open)
        before, findings = self.audit.audit(step, norms)
        if findings:
            verdict = _sick(findings[0])
        elif snapshot.key == self.states[0].key and not verdict.is_sick:
            verdict = StateVerdict(Condition.GOOD, "the state this training began with")
        self.states = tuple(replace(s, verdict=verdict) if s.key == snapshot.key else s for s in self.states)
        self._tell_of_audit(step, before, findings)

    def audit_now(self, *, is_kept: bool = False) -> StateVerdict | None:
        """Compare the state of this moment with the last one: it is suspicious, or is being kept on disk.

        Returns what is wrong with it; None where nothing is, or no other state is there to compare it with.
        """
        from ...tensors.norms import state_norms

        if not self.states:
            return None
        step, optimizer = self._step(), self.trainer.optimizer
        norms = state_norms(self.trainer.model, getattr(optimizer, "optimizer", optimizer))
        before, findings = self.audit.audit(step, norms) if is_kept else self.audit.compare(step, norms)
        self._tell_of_audit(step, before, findings)
        return _sick(findings[0]) if findings else None

    def _tell_of_audit(self, step: int, before: int, findings: Sequence[Finding]) -> None:
        self._is_unexplained = bool(findings)
        if findings:
            told = f"{len(findings)} tensors of the state of step {step}, such as {findings[0].name}: {findings[0].because}"
            self.note("state-unexplained", told)
        if self.loop.guard is not None and self.loop.guard.lets_through:
            return  # as the user has asked for
        # Of every audit, so that a rule can tell that nothing is wrong any more.
        self.look({"state_unexplained": float(len(findings)), "state_audited_from": float(before)})

    # -- judging -------------------------------------------------------------------------------------

    def observed(self, incidents: Iterable[Incident]) -> None:
        """Count a step, with what is open at its end."""
        furthest = self.loop.snapshots.furthest
        if furthest is not None and self.updates > furthest.updates:
            self.loop.snapshots.furthest = None  # the run is beyond it again
        self._judge_what_is_measured()
        known = list(incidents)
        harmful = [each for each in known if may_have_harmed(each)]
        for incident in harmful:
            self._suspect(incident)
        if not harmful:
            self._open = None
        self.states = after_observation(
            self.states,
            self._step(),
            healthy=not any(map(is_unhealthy, known)),
            needed={Tier.MEMORY: self.settings.good_after},
        )
        self._share()

    def _suspect(self, incident: Incident) -> None:
        onset = incident.onset_step if incident.onset_step is not None else incident.step
        if self._open is None or onset < self._open.onset:
            self._open = OpenIncident(incident.name, onset)
            self.states = after_incident(self.states, self._open)

    def first_loss(self, step: int, loss: float) -> RollBackTo | None:
        """Compare the first loss after a return with that of the first time; ask for an older state where they differ."""
        rejected = self._losses.rejects(step, loss, self.states)
        if rejected is None:
            return None
        self._drop([rejected])
        older = self.choose(before_step=step, depth=0, min_steps=None)
        return RollBackTo(older.key) if older is not None else None

    # -- returning -----------------------------------------------------------------------------------

    def state_of(self, key: str) -> SavedState | None:
        """Return what is known of a state."""
        return next((state for state in self.states if state.key == key), None)

    def return_to_the_furthest(self) -> str:
        """Put the furthest sound state back where the run ends before it has come as far again; say so."""
        is_sound = self._open is None and not self._is_unexplained
        if not is_sound:
            self.about_to_return()  # which finds the furthest sound one
        furthest = self.loop.snapshots.furthest
        if furthest is None or (is_sound and furthest.updates <= self.updates) or not furthest.capture.copies.verify():
            return ""
        furthest.capture.restore()
        return f"; the weights are those of step {furthest.step}, the last that were sound"

    def about_to_return(self) -> None:
        """Keep the furthest sound state, in case the run ends before it has come as far again."""
        is_sound = self._open is None and not self._is_unexplained
        self.loop.snapshots.furthest = furthest_sound(
            self.loop.snapshots, self.states, step=self._step(), updates=self.updates, is_sound=is_sound
        )

    def choose(self, *, before_step: int | None, depth: int, min_steps: int | None) -> SavedState | None:
        """Return the state to go back to, None where memory holds none that will do."""
        step = self._step()
        usable = [state for state in self.states if self.loop.is_in_reach(state.key)]
        if min_steps is not None:
            usable = [state for state in usable if state.step <= step - min_steps] or usable[:1]
        if before_step is None and self._open is None:
            newest = newest_for_a_crash(usable)
        else:
            onset = before_step if before_step is not None or self._open is None else self._open.onset
            newest = newest_for_an_incident(usable, onset)
        return None if newest is None else at_depth(usable, newest, depth=depth, step=step)

    def newest_good(self) -> SavedState | None:
        """Return the newest state that has proved itself."""
        return newest_for_an_incident(self.states, None)

    def write_to_disk(self, state: SavedState) -> str:
        """Write a state to disk as the trainer writes its checkpoints; training is not touched by it."""
        trainer, snapshot = self.trainer, self.loop.snapshots.get(state.key)
        name = f"checkpoint-{state.step}"
        if snapshot is None or (Path(trainer.args.output_dir) / name).exists():
            return f"{name} is there already"
        # What is best by now must not make room for what is known to an earlier state.
        with self.loop.snapshots.for_a_moment(snapshot), keeping_all_checkpoints(trainer):
            trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001  # what the loop itself calls
        return f"{name} was written from memory"

    def _older_than(self, key: str) -> str | None:
        """Return the newest state before one that turned out to be damaged."""
        damaged = self.state_of(key)
        older = None if damaged is None else self.choose(before_step=damaged.step, depth=0, min_steps=None)
        return None if older is None else older.key

    def leave_out_after_restart(self, steps: Sequence[int], more: int) -> None:
        """Leave data out when training is entered anew from a checkpoint."""
        self.loop.leave_out_after_restart(steps, more)

    def _returned(self, snapshot: Snapshot, asked: RollBackTo) -> None:
        self.updates = snapshot.updates
        self._is_unexplained = False
        self._forget_what_is_gone()  # those after it belong to what is undone
        self._open = None
        self.audit.returned(snapshot.step, snapshot.norms() or {})
        self._next = snapshot.step + 1  # it is kept already; the next one as soon as there is something new
        repeats = not (asked.skip or asked.brings_other_data)
        self._losses.returned(self.state_of(snapshot.key) if repeats else None, onset=asked.onset)
        self._share()
        self.on_return(snapshot.step)

    def _step(self) -> int:
        return int(self.trainer.state.global_step)


def _sick(found: Finding) -> StateVerdict:
    return StateVerdict(Condition.SICK, f"{found.name}: {found.because}")

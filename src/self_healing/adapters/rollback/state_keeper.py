"""Takes the states of a run, has them judged by what follows, and knows which of them are there to return to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.lifecycle import Case
from ...core.signal import Signal, SnapshotDropped, SnapshotTaken
from ...snapshots.audit import Finding
from ...snapshots.spacing import FEWEST_SLOTS
from ...snapshots.verdicts import Condition, SavedState, StateVerdict, verdict_when_taken
from ..ending.device_errors import is_device_lost
from ..run.moves import ReturnTo
from .best_checkpoint import written_from_memory
from .first_losses import FirstLosses
from .frozen_audit import BrokenWeights, FrozenAudit
from .furthest import keep_the_furthest
from .in_loop import RollbackLoop
from .known_states import KnownStates
from .memory_snapshots import Snapshot
from .shared_states import SharedStates
from .state_audit import StateAudit, sick_by
from .state_returns import Arrival, StateReturns
from .state_schedule import MOST_SLOTS, NoRoomError, StateSchedule, StateSettings, place_for

if TYPE_CHECKING:
    from ..run.checkpoint_folders import RunCheckpoints
    from ..step.step_guard import StepGuard
    from ..step.update_numbers import UpdateNumbers


MOST_FAILURES = 3
"""States in a row that could not be taken before no more are: what they cost is lost."""


class StateKeeper:
    """Takes states of one training and judges them by what is observed afterwards."""

    def __init__(
        self, trainer: Any, guard: StepGuard, settings: StateSettings, kind: type[StateReturns] = RollbackLoop
    ) -> None:
        self.trainer = trainer
        self.settings = settings
        self.loop = kind(
            trainer,
            slots=1 + MOST_SLOTS,
            guard=guard,
            tell=self._tell,
            make_room=self._make_room,
            on_return=self._returned,
        )
        self.loop.choose_instead = self._older_than
        self.loop.before_return = partial(keep_the_furthest, self)
        self.shared = SharedStates(trainer, settings, self._tell, self.loop)
        self.loop.snapshots.backing = self.shared.slot
        self.known = KnownStates()
        self.on_return: Callable[[Arrival], None] = lambda _arrival: None
        """Is told that the run has returned."""
        self.cases: Callable[[], Iterable[Case]] = tuple
        """Says what is open at this moment."""
        self.is_on = settings.snapshot_memory_fraction > 0
        self.signal: Callable[[Signal], object] = lambda _signal: None
        self.note: Callable[[str, str], None] = lambda _name, _text: None
        self.look: Callable[[Mapping[str, float]], None] = lambda _values: None
        """Is given what there is to observe about states."""
        self.began_broken: Callable[[Sequence[str]], None] = lambda _names: None
        """Is told what is not finite in the state that training began with."""
        self.audit = StateAudit(trainer, self._tell)
        self.frozen = FrozenAudit(trainer, self.loop.snapshots.leaves_out_frozen, self._tell)
        """Looks at what states leave out because nothing trains it."""
        self.brought_to_light: deque[Signal] = deque()
        """What was found out while a plan was carried out."""
        self.updates = 0
        """Updates that the weights of this moment hold."""
        self.is_unexplained = False
        """The last audit has found something that training cannot have done."""
        self._unmeasured: list[str] = []
        """States whose norms are on their way."""
        self._failures = 0
        """States in a row that could not be taken."""
        self.schedule = StateSchedule(settings)
        self.agreed: Callable[[int], bool] | None = None
        """Says whether all processes take the state of a step, where there are several; else the schedule does."""
        self.common: Callable[..., SavedState | None] | None = None
        """Chooses the state that all processes return to, where there are several."""
        self._losses = FirstLosses(self._tell)

    @property
    def states(self) -> tuple[SavedState, ...]:
        """The states in memory, each with what is thought of it by now."""
        return self.known.states

    def let_go(self) -> None:
        """Hold on to nothing any more: the trainer and its data may go as soon as their owner lets go of them."""
        self.loop.let_go()
        vars(self).clear()

    def applied(self, step: int, numbers: UpdateNumbers, gradient: float) -> None:
        """Take note of an update."""
        self.updates += 1
        self.audit.applied(step, numbers, gradient)

    def _tell(self, name: str, text: str) -> None:
        self.note(name, text)

    # -- taking --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start anew: `train()` was entered, with an optimizer and data of its own, unless it was for one of the states."""
        if self.loop.restart.has_begun():
            return
        self._drop(self.states)
        self.updates = self._step()
        self.schedule.begin(self.updates)
        self.known.open = None
        self._losses.begin()
        self._unmeasured.clear()
        self.audit.begin()
        self.frozen.begin()

    def is_due(self) -> bool:
        """Say whether the state of this moment is to be taken before the next step; later where memory is not ready."""
        step = self._step()
        if self.is_on and self.loop.forgets_what_is_outgrown():
            self._forget_what_is_gone()
            self.schedule.begin(step)
        if self.agreed is not None:
            return self.is_on and self.agreed(step) and self._has_room() and self.loop.snapshots.has_memory(wait=True)
        is_time = self.schedule.is_time(step) or step == self.audit.found_at  # does it come back there?
        return (
            self.is_on and is_time and self._has_room() and self.loop.snapshots.has_memory(wait=self.schedule.is_exact)
        )

    def step_begins(self, step_time_s: float, *, is_due: bool) -> None:
        """Take the state between two steps where it is due; the next step's data must be there already."""
        step = self._step()
        self.schedule.stepped(step, step_time_s)
        if not is_due:
            return
        began_s = time.perf_counter()
        try:
            snapshot = self.loop.take()
        except Exception as error:  # whatever a model or what belongs to it raises: it is told
            if is_device_lost(error):  # found out here by chance: the states that there are must not be given up for it
                raise
            self._could_not_take(f"the state of step {step} could not be taken ({type(error).__name__}: {error})")
            return
        if snapshot is None:  # a step before it is still to be made up
            return
        self.frozen.state_taken(step)
        busy_s, self._failures = time.perf_counter() - began_s, 0
        snapshot.updates = self.updates
        self._forget_what_is_gone()
        self.known.add(snapshot.key, step)
        self._unmeasured.append(snapshot.key)
        self.signal(SnapshotTaken(step=step, time_s=time.time(), key=snapshot.key))
        self.schedule.took(step, busy_s=busy_s, first_step=self.states[0].step, returns=self.loop.returns)
        if self.schedule.slots is not None:
            self.loop.snapshots.has_memory()  # for the next one, while training goes on
        self._judge_what_is_measured()
        self._share()

    def _share(self) -> None:
        self.shared.update(self.states, self.loop.snapshots.get)

    def _has_room(self) -> bool:
        """Say whether the state of this moment can be kept; where memory is short none is, with a word about it."""
        schedule, snapshots = self.schedule, self.loop.snapshots
        if schedule.slots is None or not self.states:
            try:
                if schedule.find_room(snapshots.expected_nbytes(), self.states, self.shared.limited):
                    snapshots.slots = 1 + (schedule.slots or 0)
            except NoRoomError as error:
                self._stop_taking(str(error))
                return False
            except Exception as error:  # noqa: BLE001  # likewise
                self._stop_taking(f"the size of a state could not be found out ({type(error).__name__}: {error})")
                return False
        return schedule.can_keep(self.states, self._step())

    def _could_not_take(self, because: str) -> None:
        """Go on with the states that there are, in their memory; after a few failures in a row without any."""
        self._failures += 1
        self._forget_what_is_gone()  # one may have made room already
        kept = len(self.loop.snapshots)
        if kept <= FEWEST_SLOTS or self._failures >= MOST_FAILURES:
            self._stop_taking(because)
            return
        self.loop.snapshots.slots = kept
        self.schedule.missed(self._step())
        self.note(
            "snapshot-failed", f"{because}: {kept} earlier ones are kept, and no more memory is taken for later ones"
        )

    def _stop_taking(self, because: str) -> None:
        """Go on without states: nothing about them may cost a run."""
        self.is_on = self.audit.has_states = False
        self.note(
            "no-snapshots",
            f"{because}: none is kept in memory, and a return goes to the newest checkpoint on disk "
            f"(snapshot_memory_fraction = {self.settings.snapshot_memory_fraction:g})",
        )
        self._drop(self.states)
        self._share()

    def _make_room(self, kept: Sequence[Snapshot]) -> Snapshot:
        """Choose the state that makes room for the one that is being taken."""
        key = self.states[1 + (place_for(self.states, self._step()) or 0)].key
        return next(each for each in kept if each.key == key)

    def _forget_what_is_gone(self) -> None:
        self._tell_of_what_is_gone(self._what_is_gone())

    def _what_is_gone(self) -> tuple[SavedState, ...]:
        return self.known.keep_only({snapshot.key for snapshot in self.loop.snapshots})

    def _tell_of_what_is_gone(self, gone: Iterable[SavedState]) -> None:
        for state in gone:
            self.signal(SnapshotDropped(step=self._step(), time_s=time.time(), key=state.key))

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

    def _judge(self, snapshot: Snapshot, measured: Mapping[str, float]) -> None:
        step, norms = snapshot.step, self.audit.buffers.without(measured)
        verdict = verdict_when_taken(step, norms=norms, open_incident=self.known.open)
        before, findings = self.audit.audit(step, norms)
        if findings:
            verdict = sick_by(findings[0])
        elif snapshot.key == self.states[0].key and not verdict.is_sick:
            verdict = StateVerdict(Condition.GOOD, "the state this training began with")
        self.known.judged(snapshot.key, verdict)
        if findings and snapshot.key == self.states[0].key and not self.loop.returns:
            self.is_unexplained = True
            self.began_broken([finding.name for finding in findings])
        else:
            self._tell_of_audit(step, before, findings)

    def audit_now(self, *, is_kept: bool = False) -> StateVerdict | None:
        """Compare the state of this moment with the last one: it is suspicious, or is being kept on disk.

        Returns what is wrong with it; None where nothing is, or no other state is there to compare it with.
        """
        if not self.states:
            return None
        if (broken := self.tell_of_frozen()) is not None:
            return StateVerdict(Condition.SICK, str(broken))
        step, norms = self._step(), self.audit.now()
        before, findings = self.audit.audit(step, norms) if is_kept else self.audit.compare(step, norms)
        self._tell_of_audit(step, before, findings)
        return sick_by(findings[0]) if findings else None

    def look_at_frozen(self, *, now: bool = True) -> BrokenWeights | None:
        """Look at all weights that states leave out, or at what is known of them by now; return what is broken.

        No return can put it back, and no state since then is trusted.
        """
        known, step = self.frozen.broken, self._step()
        broken = self.frozen.look_at_all(step) if now else self.frozen.found(step)
        if broken is not None and known is None:
            self.is_unexplained = True
            self.note("frozen-weight-broken", f"{broken}; no state of this run holds it, so that none can put it back")
            self.known.harmed_since(broken.since + 1, "unexplained-state")
            self._share()
        return broken

    def tell_of_frozen(self, *, now: bool = True) -> BrokenWeights | None:
        """Do so, and have the core decide what is to follow."""
        broken = self.look_at_frozen(now=now)
        if broken is not None and not (self.loop.guard is not None and self.loop.guard.lets_through):
            self.signal(broken.sign(self._step()))
        return broken

    def _tell_of_audit(self, step: int, before: int, findings: Sequence[Finding]) -> None:
        self.is_unexplained = bool(findings) or self.frozen.broken is not None
        if findings:
            told = f"{len(findings)} tensors of the state of step {step}, such as {findings[0].name}: {findings[0].because}"
            self.note("state-unexplained", told)
        if self.loop.guard is not None and self.loop.guard.lets_through:  # what is not finite, as was asked for
            findings = [finding for finding in findings if finding.is_finite]
        # Of every audit, so that a rule can tell that nothing is wrong any more.
        self.look({"state_unexplained": float(len(findings)), "state_audited_from": float(before)})

    # -- judging -------------------------------------------------------------------------------------

    def observed(self, steps: Iterable[int], cases: Iterable[Case]) -> None:
        """Count steps, with what is open after them."""
        furthest = self.loop.snapshots.furthest
        if furthest is not None and self.updates > furthest.updates:
            self.loop.snapshots.furthest = None  # the run is beyond it again
        self._judge_what_is_measured()
        self.tell_of_frozen(now=False)  # at the end of a step, where a run can be ended without another one
        for step in steps:
            self.known.observed(step, cases, good_after=self.settings.good_after)
        self._share()

    def first_loss(self, step: int, loss: float) -> ReturnTo | None:
        """Compare the first loss after a return with that of the first time; ask for an older state where they differ."""
        move = self._losses.rejects(step, loss, self.states, self._older_than)
        if move is not None:
            self.loop.snapshots.drop(move.returns_to)
            self._forget_what_is_gone()
        return move

    # -- returning -----------------------------------------------------------------------------------

    def state_of(self, key: str) -> SavedState | None:
        """Return what is known of a state."""
        return self.known.get(key)

    def choose(self, *, before_step: int | None, depth: int, min_steps: int | None) -> SavedState | None:
        """Return the state to go back to, None where memory holds none that will do."""
        if self.common is not None:
            return self.common(before_step=before_step, depth=depth, min_steps=min_steps)
        return self.known.choose(
            self.loop.is_in_reach, self._step(), before_step=before_step, depth=depth, min_steps=min_steps
        )

    def newest_good(self) -> SavedState | None:
        """Return the newest state that has proved itself."""
        return self.known.newest_good()

    def write_to_disk(self, state: SavedState, own: RunCheckpoints) -> str:
        """Write a state to disk as the trainer writes its checkpoints; training is not touched by it."""
        return written_from_memory(self.trainer, self.loop.snapshots, state, own)

    def damaged(self, state: SavedState, because: str) -> None:
        """Let go of a state whose memory does not hold what was set aside."""
        self._tell("state-damaged", because)
        self._drop([state])
        self._share()

    def _older_than(self, key: str) -> str | None:
        """Return the newest state before one that turned out to be damaged; the first one has none."""
        damaged = self.state_of(key)
        older = None if damaged is None else self.choose(before_step=damaged.step, depth=0, min_steps=None)
        return None if older is None or older.key == key else older.key

    def _returned(self, arrival: Arrival) -> None:
        snapshot = arrival.snapshot
        self.updates = snapshot.updates
        self.is_unexplained = False
        self.frozen.returned(snapshot.step)
        gone = self._what_is_gone()  # those after it belong to what is undone
        self.known.open = None
        self.audit.returned(snapshot.step, snapshot.norms() or {})
        self.schedule.returned(snapshot.step, onset=arrival.move.onset)
        self._losses.returned(self.state_of(snapshot.key) if arrival.repeats else None, onset=arrival.move.onset)
        self._share()
        self.on_return(arrival)
        self._tell_of_what_is_gone(gone)

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

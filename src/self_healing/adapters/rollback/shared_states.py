"""States of a run where they outlive its process: the newest intact and the newest good one are published.

The memory that states are copied into is shared memory from the start, so that nothing is copied twice. What is said
of a state, its index, is written by a thread of its own; training never waits for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...snapshots.verdicts import SavedState, newest_for_a_crash, newest_for_an_incident
from .data_windows import EpochData, Place
from .left_out import left_out_of
from .restart import EpochStart

if TYPE_CHECKING:
    from ...snapshots.shared_memory import SharedRun, SharedSlot
    from ...tensors.arrivals import Worker
    from ...tensors.described import Described
    from .memory_snapshots import Snapshot
    from .state_returns import StateReturns

HEADROOM_BYTES = 64 << 20
ENDED_FOR_GOOD = frozenset({"completed", "pruned", "sigint"})
"""Ends after which nothing is resumed: the work is done, or a person has ended it."""


class Settings(Protocol):
    """What the user may say about it."""

    shared_memory: bool
    shared_memory_max_fraction: float


@dataclass(frozen=True, slots=True, eq=False)
class _Submitted:
    slot: SharedSlot
    ticket: object
    state: SavedState
    left_out: frozenset[tuple[int, int]]
    """Batches that are left out for good, by epoch and number."""


class SharedStates:
    """Has the states of one training published, as far as shared memory has room for them."""

    def __init__(self, trainer: Any, settings: Settings, tell: Callable[[str, str], None], loop: StateReturns) -> None:
        self._args = trainer.args
        self._loop = loop
        self.facts: Mapping[str, object] = {}
        """What a trainer must have in common with this one to take a state over."""
        self.past_of: Callable[[str], Mapping[str, object] | None] = lambda _key: None
        """Returns the history that the rules had when a state was taken."""
        self.publishes_one_more = False
        """The intact state before the newest is published too: other processes may not have come as far."""
        self._settings = settings
        self._tell = tell
        self._is_wanted = settings.shared_memory
        self._run: SharedRun | None = None
        self._worker: Worker | None = None
        self._submitted: dict[str, _Submitted] = {}
        """What is published or is about to be, by the key of its state."""
        self._last: object = None
        self._log_text: Any = None
        self._problem = ""
        """What went wrong in the other thread."""
        self._is_short = False

    # -- memory --------------------------------------------------------------------------------------

    def open(self, *, starts_over: bool = False) -> None:
        """Take the run's folder before its states are read, so that nobody removes them; or remove them."""
        run = self._opened()
        if run is not None and starts_over:
            run.forget_former()

    def slot(self) -> SharedSlot | None:
        """Return where the memory for one state after the other comes from, None where it is not shared."""
        run = self._opened()
        return None if run is None else run.slot()

    def limited(self, slots: int, nbytes: int, fewest: int) -> int:
        """Return how many states of a size are kept: so few that all have room, else as many as without sharing them."""
        run = self._opened()
        if run is None:
            return slots
        shared = run.states_of(nbytes + min(nbytes // 8, HEADROOM_BYTES))
        if shared >= fewest:
            return min(slots, shared)
        self._give_up(f"a state takes {nbytes:,} bytes, and there is no room for {fewest} of them in {run.path}")
        return slots

    def _opened(self) -> SharedRun | None:
        if not self._is_wanted or self._run is not None:
            return self._run
        from ...snapshots.budget import local_ranks
        from ...snapshots.shared_folder import SharedMemoryError, run_name
        from ...snapshots.shared_memory import SharedRun

        fraction = self._settings.shared_memory_max_fraction / local_ranks(os.environ)
        name = run_name(self._args.output_dir, int(self._args.process_index))
        try:
            self._run = SharedRun.open(name, fraction=fraction)
        except SharedMemoryError as error:
            self._give_up(str(error))
        return self._run

    def _give_up(self, because: str) -> None:
        """Go on without: the memory that is in use stays what it is, and is no file any more."""
        self._tell(
            "no-shared-memory",
            f"{because}: states do not outlive this process, and a new one resumes from the newest checkpoint on disk "
            f"(shared_memory_max_fraction = {self._settings.shared_memory_max_fraction:g})",
        )
        self.end(for_good=True)

    # -- publishing ----------------------------------------------------------------------------------

    def update(self, states: Iterable[SavedState], get: Callable[[str], Snapshot | None]) -> None:
        """Have the newest intact and the newest good state published, and none that is sick or gone."""
        if self._run is None:
            return
        if self._problem:
            self._give_up(self._problem)
            return
        left_out = left_out_of(self._loop.data)
        now = [(state.key, state.verdict) for state in states], left_out
        if now == self._last:
            return
        self._last = now
        known = {state.key: state for state in states}
        shared = {key: state for key, state in known.items() if self._is_shared(get(key))}
        good, intact = newest_for_an_incident(shared.values(), None), newest_for_a_crash(shared.values())
        before = None
        if self.publishes_one_more and intact is not None:
            before = newest_for_a_crash(state for state in shared.values() if state.step < intact.step)
        wanted = {state.key: state for state in (good, before, intact) if state is not None}  # the safer one first
        for key in [key for key in self._submitted if key not in known or known[key].verdict.is_sick]:
            self._submitted.pop(key).slot.withdraw()
        for key, state in wanted.items():
            told, snapshot = self._submitted.get(key), get(key)
            is_new = told is None or (told.state.verdict, told.left_out) != (state.verdict, left_out)
            if snapshot is not None and is_new:
                self._submit(state, snapshot, left_out)
        for key in [key for key in self._submitted if key not in wanted]:
            old = self._submitted.pop(key)
            self._do(partial(old.slot.withdraw, old.ticket))  # when its successor is there

    def _is_shared(self, snapshot: Snapshot | None) -> bool:
        """Say whether a state lies where others find it; where there was no more room for one, say that once."""
        slot = None if snapshot is None else snapshot.slot
        if slot is None or slot.is_shared:
            return slot is not None
        if not self._is_short:
            self._is_short = True
            self._tell("shared-memory-full", "shared memory has no more room: some states do not outlive this process")
        return False

    def _submit(self, state: SavedState, snapshot: Snapshot, left_out: frozenset[tuple[int, int]]) -> None:
        slot: Any = snapshot.slot.backing
        entry = self._submitted[state.key] = _Submitted(slot, slot.ticket(), state, left_out)
        self._do(partial(self._publish, entry, snapshot))

    def _do(self, job: Callable[[], None]) -> None:
        from ...tensors.arrivals import Worker

        if self._worker is None:
            self._worker = Worker("state-is-published")
        self._worker.do(job)

    def _publish(self, entry: _Submitted, snapshot: Snapshot) -> None:
        """Write the index of a state: in a thread of its own."""
        described = snapshot.copies.described()
        if described is None:  # given away meanwhile, or it never arrived
            return
        try:
            index = self._index(entry, snapshot, described)
            log = self._log(snapshot, described)
            entry.slot.publish(entry.ticket, index, described.fixed, described.others, log)
        except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
            self._problem = (
                f"the state of step {snapshot.step} could not be described ({type(error).__name__}: {error})"
            )

    def _log(self, snapshot: Snapshot, described: Described) -> str:
        from ...snapshots.shared_index import LogText
        from ...tensors.plain import to_plain

        if self._log_text is None:
            self._log_text = LogText()
        text: str = self._log_text.of(snapshot.capture.log(), lambda entry: to_plain(entry, described.names))
        return text

    def _index(self, entry: _Submitted, snapshot: Snapshot, described: Described) -> Any:
        from ...snapshots.shared_index import BlockMark, StateIndex

        blocks = [
            BlockMark(file=block.file or "", size=block.size, used=block.used, hashes=block.hashes)
            for block in described.blocks
        ]
        return StateIndex(
            run=entry.slot.run.name,
            step=snapshot.step,
            verdict=entry.state.verdict,
            created_s=time.time(),
            slice_bytes=described.slice_bytes,
            blocks=blocks,
            left_out=described.left_out,
            state=self._state(entry, snapshot, described),
        )

    def _state(self, entry: _Submitted, snapshot: Snapshot, described: Described) -> Mapping[str, object]:
        from ...tensors.plain import to_plain

        values = {"updates": snapshot.updates, "run": dict(self.facts), **snapshot.capture.values()}
        # The generators are thousands of numbers, which need not be looked at one by one.
        return {
            **to_plain(values, described.names),
            "steps_per_epoch": self._loop.restart.steps_per_epoch,
            "place": place_of(snapshot.place, entry.left_out),
            # As text: thousands of numbers, which need not be looked at one by one either.
            "history": json.dumps(self.past_of(snapshot.key)),
            "random": snapshot.capture.random_numbers(),
        }

    # -- the end -------------------------------------------------------------------------------------

    def newest_step(self) -> int | None:
        """Return the step of the newest state that is published; waits for those that are about to be."""
        if self._run is None:
            return None
        if self._worker is not None:
            self._worker.wait()
        steps = [each.state.step for each in self._submitted.values()]
        return None if self._problem else max(steps, default=None)

    def end(self, *, for_good: bool) -> None:
        """Let go of shared memory: with all that is in it, or leaving what is published to the next attempt."""
        self._is_wanted = False
        run, self._run = self._run, None
        self._submitted.clear()
        self._last = None
        if run is None:
            return
        if self._worker is not None:
            self._worker.wait()
        (run.remove if for_good else run.leave)()


def place_from(plain: Mapping[str, Any]) -> tuple[Place, set[tuple[int, int]]]:
    """Take what `place_of` returned: where the data stood, and what of them is left out for good."""
    start = None if plain["start"] is None else EpochStart.from_plain(plain["start"])
    epoch = EpochData({"epoch": int(plain["epoch"])}, 0, 0, start=start)
    index, fetched, number, steps, owed = (int(plain[name]) for name in ("index", "fetched", "number", "steps", "owed"))
    left_out = {(int(epoch_number), int(each)) for epoch_number, each in plain["left_out"]}
    return Place(epoch, index, fetched, number, steps, owed), left_out


def place_of(place: Place, left_out: Iterable[tuple[int, int]]) -> Mapping[str, object]:
    """Return where the data stood as plain JSON."""
    start = place.epoch.start
    return {
        "epoch": place.epoch.number,
        "index": place.index,
        "fetched": place.fetched,
        "number": place.number,
        "steps": place.steps,
        "owed": place.owed,
        "left_out": sorted(map(list, left_out)),
        "start": None if start is None else start.to_plain(),
    }

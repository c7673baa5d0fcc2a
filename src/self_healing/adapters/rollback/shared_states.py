"""States of a run where they outlive its process: the newest intact and the newest good one are published.

The memory that states are copied into is shared memory from the start, so that nothing is copied twice. What is said
of a state, its index, is written by a thread of its own; training never waits for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ...snapshots.verdicts import SavedState, newest_for_a_crash, newest_for_an_incident

if TYPE_CHECKING:
    from ...snapshots.shared_memory import SharedRun, SharedSlot
    from ...tensors.arrivals import Worker
    from ...tensors.described import Described
    from .memory_snapshots import Snapshot

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


class SharedStates:
    """Has the states of one training published, as far as shared memory has room for them."""

    def __init__(self, trainer: Any, settings: Settings, tell: Callable[[str, str], None]) -> None:
        self._args = trainer.args
        self._settings = settings
        self._tell = tell
        self._is_wanted = settings.shared_memory
        self._run: SharedRun | None = None
        self._worker: Worker | None = None
        self._submitted: dict[str, _Submitted] = {}
        """What is published or is about to be, by the key of its state."""
        self._last: tuple[tuple[str, object], ...] = ()
        self._problem = ""
        """What went wrong in the other thread."""
        self._is_short = False

    # -- memory --------------------------------------------------------------------------------------

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
        from ...snapshots.shared_folder import SharedMemoryError, run_name
        from ...snapshots.shared_memory import SharedRun

        fraction = self._settings.shared_memory_max_fraction / max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
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
        known = {state.key: state for state in states}
        now = tuple((key, state.verdict) for key, state in known.items())
        if now == self._last:
            return
        self._last = now
        shared = {key: state for key, state in known.items() if self._is_shared(get(key))}
        good, intact = newest_for_an_incident(shared.values(), None), newest_for_a_crash(shared.values())
        wanted = {state.key: state for state in (good, intact) if state is not None}  # the safer one first
        for key in [key for key in self._submitted if key not in known or known[key].verdict.is_sick]:
            self._submitted.pop(key).slot.withdraw()
        for key, state in wanted.items():
            before, snapshot = self._submitted.get(key), get(key)
            if snapshot is not None and (before is None or before.state.verdict != state.verdict):
                self._submit(state, snapshot)
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

    def _submit(self, state: SavedState, snapshot: Snapshot) -> None:
        slot: Any = snapshot.slot.backing
        entry = self._submitted[state.key] = _Submitted(slot, slot.ticket(), state)
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
            entry.slot.publish(entry.ticket, _index(entry, snapshot, described), described.fixed, described.others)
        except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
            self._problem = (
                f"the state of step {snapshot.step} could not be described ({type(error).__name__}: {error})"
            )

    # -- the end -------------------------------------------------------------------------------------

    def end(self, *, for_good: bool) -> None:
        """Let go of shared memory: with all that is in it, or leaving what is published to the next attempt."""
        self._is_wanted = False
        run, self._run = self._run, None
        self._submitted.clear()
        self._last = ()
        if run is None:
            return
        if self._worker is not None:
            self._worker.wait()
        (run.remove if for_good else run.leave)()


def _index(entry: _Submitted, snapshot: Snapshot, described: Described) -> Any:
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
        state=_state(snapshot, described),
    )


def _state(snapshot: Snapshot, described: Described) -> Mapping[str, object]:
    from ...tensors.plain import to_plain

    place = snapshot.place
    values = {
        "updates": snapshot.updates,
        "place": None if place is None else [place.epoch.number, place.index, place.fetched],
        **snapshot.capture.values(),
    }
    # The generators are thousands of numbers, which need not be looked at one by one.
    return {**to_plain(values, described.names), "random": snapshot.capture.random_numbers()}

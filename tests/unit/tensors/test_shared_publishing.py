"""Which states of a run others find in shared memory, and when: real memory and a real thread, and no trainer."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from self_healing.adapters.rollback.data_windows import DataWindows, EpochData, Place
from self_healing.adapters.rollback.memory_snapshots import Snapshot
from self_healing.adapters.rollback.shared_states import SharedStates
from self_healing.snapshots.shared_folder import VARIABLE, run_name
from self_healing.snapshots.shared_reader import read_states
from self_healing.snapshots.verdicts import Condition, SavedState, StateVerdict
from self_healing.tensors.host_slot import HostCopies, HostSlot
from self_healing.tensors.state import capture

from .shared_training import made, trained_step

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no shared memory here"),
]


class Run:
    """A training whose states are taken and judged by hand."""

    def __init__(self, folder):
        self.folder, self.notes = folder, []
        args = SimpleNamespace(output_dir=str(folder), process_index=0)
        settings = SimpleNamespace(shared_memory=True, shared_memory_max_fraction=0.5)
        tell = lambda name, text: self.notes.append((name, text))  # noqa: E731
        self.data = DataWindows(0)
        loop = SimpleNamespace(data=self.data, restart=SimpleNamespace(steps_per_epoch=5))
        self.shared = SharedStates(SimpleNamespace(args=args), settings, tell, loop)
        self.model, self.optimizer = made()
        self.snapshots, self.states, self.held = {}, {}, []

    def take(self, step, slot=None):
        trained_step(self.model, self.optimizer)
        copies = HostCopies(slot or HostSlot(self.shared.slot()))
        capture([self.model, self.optimizer], copies=copies)
        copies.start()
        place = Place(EpochData({"epoch": 0}, 0, 0), step, 1, step, step)
        kept = SimpleNamespace(copies=copies, values=lambda: {"step": step}, random_numbers=dict, log=list)
        self.snapshots[str(step)] = Snapshot(str(step), step, place, copies.nbytes, kept)
        self.judge(step, Condition.INTACT)
        return copies.slot

    def judge(self, step, condition):
        self.states[str(step)] = SavedState(key=str(step), step=step, verdict=StateVerdict(condition, ""))

    def forget(self, step):
        del self.states[str(step)], self.snapshots[str(step)]

    def update(self):
        self.shared.update(tuple(self.states.values()), self.snapshots.get)

    def found(self, *, after_all=True):
        if after_all:
            self.shared._worker.wait()
        found = read_states(run_name(self.folder))
        return [(state.step, state.index.verdict.condition.value) for state in found]

    def hold_worker(self):
        """Keep the other thread busy until the event that is returned is set."""
        go_on = threading.Event()
        self.held.append(go_on)
        self.shared._do(go_on.wait)
        return go_on


@pytest.fixture
def run(tmp_path, monkeypatch):
    base = tempfile.mkdtemp(prefix="test-self-healing-", dir="/dev/shm")
    monkeypatch.setenv(VARIABLE, base)
    run = Run(tmp_path)
    yield run
    for go_on in run.held:
        go_on.set()
    run.shared.end(for_good=True)
    assert list(Path(base).iterdir()) == []
    shutil.rmtree(base)


def test_the_newest_intact_and_the_newest_good_state_are_found_and_no_others(run):
    for step in (1, 2, 3):
        run.take(step)
        run.update()
    assert run.found() == [(3, "intact")]
    run.judge(1, Condition.GOOD)
    run.update()
    assert run.found() == [(3, "intact"), (1, "good")]
    run.judge(2, Condition.GOOD)
    run.update()
    assert run.found() == [(3, "intact"), (2, "good")]
    run.judge(3, Condition.GOOD)
    run.update()
    assert run.found() == [(3, "good")]
    assert run.notes == []


def test_a_state_is_published_again_when_data_behind_it_are_left_out(run):
    run.take(1)
    run.update()
    run.data.left_out.add((0, 7))
    run.update()
    run.shared._worker.wait()
    (state,) = read_states(run_name(run.folder))
    assert state.index.state["place"]["left_out"] == [[0, 7]]


def test_what_turns_out_sick_or_is_undone_is_gone_at_once_and_what_was_on_its_way_never_comes(run):
    for step in (1, 2, 3):
        run.take(step)
    run.judge(1, Condition.GOOD)
    run.update()
    assert run.found() == [(3, "intact"), (1, "good")]
    go_on = run.hold_worker()
    run.judge(3, Condition.SICK)
    run.update()
    assert run.found(after_all=False) == [(1, "good")]
    run.forget(2)  # whose index is about to be written
    run.update()
    go_on.set()
    assert run.found() == [(1, "good")]


def test_the_former_state_is_found_until_its_successor_is(run):
    run.take(1)
    run.update()
    assert run.found() == [(1, "intact")]
    go_on = run.hold_worker()
    run.take(2)
    run.update()
    assert run.found(after_all=False) == [(1, "intact")]
    run.judge(2, Condition.SICK)  # so that the former one is wanted again, although it is to be withdrawn
    run.update()
    go_on.set()
    assert run.found() == [(1, "intact")]


def test_a_slot_that_is_written_to_again_is_published_anew(run):
    slot = run.take(1)
    run.take(2)
    run.judge(1, Condition.GOOD)
    run.update()
    assert run.found() == [(2, "intact"), (1, "good")]
    run.forget(1)
    run.take(3, slot)
    assert run.found() == [(2, "intact")]
    run.judge(2, Condition.GOOD)
    run.update()
    assert run.found() == [(3, "intact"), (2, "good")]


def test_what_cannot_be_described_ends_the_sharing_and_not_the_run(run):
    run.take(1)
    run.snapshots["1"].capture.values = lambda: {"a": 1}["b"]
    run.update()
    assert run.found() == []
    run.update()
    ((name, text),) = run.notes
    assert name == "no-shared-memory"
    assert "could not be described" in text
    run.update()
    assert run.shared.slot() is None

"""Shared memory: who finds what while a run lives, what is left when it ends, and who gets the room."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from self_healing.snapshots import shared_folder
from self_healing.snapshots.shared_folder import SharedMemoryError, run_name
from self_healing.snapshots.shared_memory import SharedRun, free_bytes
from self_healing.snapshots.shared_reader import read_states
from self_healing.snapshots.verdicts import Condition, StateVerdict

from .shared import SHM, child, files, killed, root, steps, write_state

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can do that")


# -- publishing ------------------------------------------------------------------------------------------


def test_nobody_finds_a_state_that_was_withdrawn_or_whose_time_is_over(base):
    run = SharedRun.open("run", base=base)
    slot = run.slot()
    block = write_state(run, slot, 5)
    assert steps(read_states("run", base=base)) == [5]
    slot.withdraw()
    assert read_states("run", base=base) == []
    ticket = slot.ticket()
    slot.withdraw()  # the memory was given to another state while the index of this one was being made
    write_state(run, slot, 6, block=block, ticket=ticket)
    assert read_states("run", base=base) == []
    assert sorted(path.name for path in run.path.iterdir()) == [block.name, "lock"]

    class Withdrawing:
        def __iter__(self):
            slot.withdraw()
            return iter(())

    write_state(run, slot, 6, block=block, left_out=Withdrawing())  # likewise, at the last moment
    assert sorted(path.name for path in run.path.iterdir()) == [block.name, "lock"]
    newer = slot.ticket()
    write_state(run, slot, 7, block=block, ticket=newer)
    slot.withdraw(ticket)  # whoever comes late withdraws nothing newer
    assert steps(read_states("run", base=base)) == [7]
    slot.withdraw(newer)
    assert read_states("run", base=base) == []
    run.remove()


def test_another_verdict_takes_the_place_of_the_first_and_the_state_is_plain(base):
    run = SharedRun.open("run", base=base)
    slot = run.slot()
    block = write_state(run, slot, 5)
    good, later = StateVerdict(Condition.GOOD, "it was"), {"step": 5, "names": ["a", None, 1.5, True]}
    write_state(run, slot, 5, block=block, verdict=good, state=later, left_out=["odd"])
    (state,) = read_states("run", base=base)
    assert (state.index.verdict.condition, state.index.state, state.index.left_out) == (Condition.GOOD, later, ["odd"])
    for unspeakable in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_state(run, slot, 5, block=block, state=unspeakable)
    assert steps(read_states("run", base=base)) == [5]
    run.remove()


# -- the end ---------------------------------------------------------------------------------------------


def test_nothing_is_left_after_success_and_only_what_is_published_otherwise(base):
    run = SharedRun.open("run", base=base)
    write_state(run, run.slot(), 5)
    run.remove()
    assert list(base.iterdir()) == []
    run = SharedRun.open("run", base=base)
    write_state(run, run.slot(), 5)
    run.slot().allocate(50_000)
    run.leave()
    assert [len(files(run.path, kind)) for kind in ("state", "block")] == [1, 1]
    assert steps(read_states("run", base=base)) == [5]
    assert run.slot().allocate(10) is None
    again = SharedRun.open("run", base=base)
    again.slot().allocate(50_000)
    again.remove()
    run = SharedRun.open("run", base=base)
    run.slot().allocate(50_000)
    run.leave()  # there is nothing to leave
    assert list(base.iterdir()) == []


def test_what_the_last_attempt_has_left_stays_until_there_is_something_newer(base):
    folder = killed(base)
    before = {path.name for path in folder.iterdir()}
    run = SharedRun.open("run", base=base)
    slot = run.slot()
    block = slot.allocate(10_000)
    assert steps(read_states("run", base=base)) == [11, 10]
    write_state(run, slot, 11, block=block)
    assert {path.name for path in folder.iterdir()} & before == {"lock"}
    assert steps(read_states("run", base=base)) == [11]
    run.remove()


def test_twenty_crashes_leave_what_one_leaves(base):
    for attempt in range(20):
        folder = killed(base, step=attempt)
        assert [path.name for path in root(base).iterdir()] == ["run"]
        assert [len(files(folder, kind)) for kind in ("state", "block")] == [2, 2]
    assert steps(read_states("run", base=base)) == [20, 19]


def test_a_script_that_crashes_in_another_folder_each_time_leaves_a_few(base):
    for attempt in range(shared_folder.MOST_DEAD + 4):
        killed(base, name=f"run-{attempt}")
    names = sorted(path.name for path in root(base).iterdir())
    last = shared_folder.MOST_DEAD + 3
    assert names == [f"run-{number}" for number in range(last - shared_folder.MOST_DEAD, last + 1)]


def test_all_ranks_of_a_run_that_was_killed_keep_what_they_have_left(base):
    names = ["run", *(f"run-rank{rank}" for rank in range(1, 2 * shared_folder.MOST_DEAD))]
    for name in names:
        killed(base, name=name)
    killed(base, name="another")
    assert sorted(path.name for path in root(base).iterdir()) == sorted([*names, "another"])


def test_a_living_run_is_never_touched(base):
    process = child(str(base), "living", "waits", "3", wait=False)
    try:
        assert process.stdout.readline() == "ready\n"
        os.utime(root(base) / "living", (1, 1))
        killed(base, name="dead")
        os.utime(root(base) / "dead", (1, 1))
        run = SharedRun.open("run", base=base, fraction=1e-9)
        assert run.slot().allocate(10_000) is None  # although room is needed
        assert sorted(path.name for path in root(base).iterdir()) == ["living", "run"]
        with pytest.raises(SharedMemoryError, match="in use"):
            SharedRun.open("living", base=base)
        assert steps(read_states("living", base=base)) == [4, 3]
    finally:
        process.kill()
        process.wait()
    SharedRun.open("living", base=base).remove()
    run.remove()
    assert list(base.iterdir()) == []


def test_a_run_lives_no_longer_than_its_process_although_a_forked_child_does(base):
    process = child(str(base), "run", "forks", "5", wait=False)
    forked = int(process.stdout.readline())
    try:
        assert process.wait() == -signal.SIGKILL
        run = SharedRun.open("run", base=base)
        assert steps(read_states("run", base=base)) == [6, 5]
        run.remove()
    finally:
        os.kill(forked, signal.SIGKILL)


def test_a_forked_child_removes_nothing(base):
    run = SharedRun.open("run", base=base)
    write_state(run, run.slot(), 5)
    pid = os.fork()
    if pid == 0:
        run.remove()
        os._exit(0)
    os.waitpid(pid, 0)
    assert steps(read_states("run", base=base)) == [5]
    with pytest.raises(SharedMemoryError, match="in use"):
        SharedRun.open("run", base=base)
    run.remove()


@pytest.mark.parametrize(("age_s", "is_kept"), [(3600.0, True), (25 * 3600.0, False)])
def test_what_a_dead_run_has_left_is_kept_for_a_day(age_s, is_kept, base):
    folder = killed(base, name="dead")
    then = time.time() - age_s
    os.utime(folder, (then, then))
    SharedRun.open("run", base=base).remove()
    assert folder.exists() == is_kept


def test_what_nobody_can_resume_from_goes_at_once(base):
    for index in files(killed(base, name="dead"), "state"):
        index.unlink()
    killed(base, name="half-removed").rename(root(base) / ".trash-1")
    SharedRun.open("run", base=base).remove()
    assert list(base.iterdir()) == []


# -- room ------------------------------------------------------------------------------------------------


@pytest.fixture
def small():
    """A memory of four mebibytes."""
    folder = Path(tempfile.mkdtemp(prefix="test-self-healing-", dir=SHM))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0755", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.skip("a small memory cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


MIB = 1 << 20


@as_root
def test_no_more_than_a_share_of_what_is_free_is_taken(small):
    run = SharedRun.open("run", base=small, fraction=0.5)
    assert run.states_of(MIB) == 2
    slot = run.slot()
    assert slot.allocate(MIB) is not None
    assert slot.allocate(MIB // 2) is not None
    assert slot.allocate(MIB) is None
    slot.discard()
    assert list(run.path.iterdir()) == [run.path / "lock"]
    assert run.slot().allocate(MIB + MIB // 2) is not None
    run.remove()
    assert list(small.iterdir()) == []


@as_root
def test_a_memory_that_is_full_is_an_error_at_once_and_nothing_is_left_of_the_attempt(small, caplog):
    run = SharedRun.open("run", base=small, fraction=0.95)
    before = sorted(run.path.iterdir())
    free = free_bytes(run._folder)
    (small / "others").write_bytes(b"x" * (free - MIB))
    run.fraction = 100.0  # as if the others had come after it was asked
    assert run.slot().allocate(2 * MIB) is None
    assert "could not be had" in caplog.text
    assert sorted(run.path.iterdir()) == before
    run.remove()


@as_root
def test_dead_runs_make_way_where_room_is_needed_the_oldest_first(small):
    for age, name in enumerate(["newest", "middle", "oldest"]):
        folder = killed(small, name, "kill", 5, MIB // 2, 0.95)
        os.utime(folder, (time.time() - 100 * age,) * 2)
    run = SharedRun.open("run", base=small, fraction=0.5)
    assert run.states_of(MIB) == 2
    assert run.slot().allocate(MIB) is not None
    assert sorted(path.name for path in root(small).iterdir()) == ["newest", "run"]
    assert run.slot().allocate(MIB - 8192) is not None
    assert [path.name for path in root(small).iterdir()] == ["run"]
    run.remove()


@as_root
def test_a_crash_loop_of_large_states_does_not_fill_the_memory(small):
    for attempt in range(6):
        # Beside what the last one has left there is no room.
        killed(small, "run", "kill", attempt, 1.2 * MIB, 0.65)
        assert steps(read_states("run", base=small)) == [attempt + 1, attempt]
        status = os.statvfs(small)
        assert status.f_bavail * status.f_frsize >= 1.5 * MIB


def test_the_name_of_a_run_is_that_of_its_folder_and_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out put").mkdir()
    name = run_name("out put")
    assert name == run_name(tmp_path / "out put") == run_name(tmp_path / "x" / ".." / "out put")
    assert name.startswith("out-put-")
    assert len({name, run_name("other"), run_name("out put", rank=3), run_name("/"), run_name(tmp_path)}) == 5
    assert all("/" not in run_name(path) for path in ("/", "..", "a" * 300, "\u00fc/\n"))

"""Shared memory: what is published outlives a killed process and is read as it was, or refused; nothing is left over."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import xxhash

from self_healing.snapshots import shared_folder
from self_healing.snapshots.shared_folder import SharedMemoryError, run_name
from self_healing.snapshots.shared_index import VERSION
from self_healing.snapshots.shared_memory import SharedRun, free_bytes
from self_healing.snapshots.shared_reader import PublishedState, RefusedState, read_states
from self_healing.snapshots.verdicts import Condition, StateVerdict

from .shared import INTACT, child, content_of, write_state

SHM = Path("/dev/shm")
pytestmark = pytest.mark.skipif(not os.access(SHM, os.W_OK), reason="there is no shared memory here")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can do that")


@pytest.fixture
def base():
    """A folder of the real shared memory, in the place of /dev/shm itself."""
    folder = Path(tempfile.mkdtemp(prefix="test-self-healing-", dir=SHM))
    yield folder
    shutil.rmtree(folder)


def root(base):
    return base / f"self-healing-{os.geteuid()}"


def killed(base, name="run", how="kill", step=10, *more):
    ended = child(str(base), name, how, str(step), *map(str, more))
    assert ended.returncode == (0 if how == "leaves" else -signal.SIGKILL), ended.stderr
    return root(base) / name


def steps(found):
    return [each.step for each in found if isinstance(each, PublishedState)]


def reasons(found):
    return [each.because for each in found if isinstance(each, RefusedState)]


def files(folder, kind):
    return sorted(folder.glob(f"*.{kind}-*"))


# -- what outlives a process -----------------------------------------------------------------------------


def test_what_a_killed_process_has_published_is_read_byte_for_byte(base):
    folder = killed(base)
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert {oct(each.stat().st_mode & 0o777) for each in folder.iterdir()} == {"0o600"}
    newest, good = read_states("run", base=base)
    assert (newest.step, good.step) == (11, 10)
    assert (newest.index.verdict, good.index.verdict.condition) == (INTACT, Condition.GOOD)
    for state in (newest, good):
        assert state.read("weights") == content_of(state.step)[:5000]
        assert state.read("count") == content_of(state.step)[5008:5016]
        with pytest.raises(ValueError, match="5000 bytes"):
            state.read_into("weights", memoryview(bytearray(4999)))


def test_a_state_that_was_being_written_is_not_there_and_the_one_before_is(base):
    assert steps(found := read_states(killed(base, how="torn").name, base=base)) == [10]
    assert reasons(found) == []


def test_nothing_is_read_where_there_is_nothing(base):
    assert read_states("run", base=base) == []
    killed(base)
    assert read_states("another", base=base) == []


# -- what is refused -------------------------------------------------------------------------------------


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


def newest_files(folder):
    """Return the index and the block of the newest state."""
    index = max(files(folder, "state"), key=lambda path: json.loads(path.read_bytes().split(b"\n", 1)[1])["step"])
    return index, folder / json.loads(index.read_bytes().split(b"\n", 1)[1])["blocks"][0]["file"]


def resigned(index, change):
    """Change an index and give it the checksum of what it then is."""
    body = change(index.read_bytes().split(b"\n", 1)[1])
    head = {"v": VERSION, "bytes": len(body), "xxh3": xxhash.xxh3_128_hexdigest(body)}
    index.write_bytes(json.dumps(head, separators=(",", ":")).encode() + b"\n" + body)


def edited(**changes):
    return lambda body: json.dumps({**json.loads(body), **changes}).encode()


def tensor(*entry):
    return lambda index, _: resigned(index, edited(tensors={"weights": list(entry)}))


def link(path, target):
    path.unlink()
    path.symlink_to(target)


HARM = {
    "a bit of the memory": (lambda _, block: flip(block, 9_999), "checksum of slice 2"),
    "the first bit": (lambda _, block: flip(block, 0), "checksum of slice 0"),
    "cut memory": (lambda _, block: os.truncate(block, 8192), "8192 bytes where 12288"),
    "grown memory": (lambda _, block: os.truncate(block, 16384), "16384 bytes where 12288"),
    "missing memory": (lambda _, block: block.unlink(), "cannot be opened"),
    "memory open to others": (lambda _, block: block.chmod(0o660), "mode 0660"),
    "memory that is a link": (lambda _, block: link(block, "/etc/passwd"), "symbolic link"),
    "a bit of the index": (lambda index, _: flip(index, 200), "checksum differs"),
    "a bit of the first line": (lambda index, _: flip(index, 20), "where|first line|checksum"),
    "a cut index": (lambda index, _: os.truncate(index, 300), "bytes where"),
    "an empty index": (lambda index, _: os.truncate(index, 0), "first line"),
    "an index open to others": (lambda index, _: index.chmod(0o604), "mode 0604"),
    "an index that is a link": (lambda index, _: link(index, "/etc/passwd"), "symbolic link"),
    "an index that is a pipe": (lambda index, _: (index.unlink(), os.mkfifo(index, 0o600)), "is no file"),
    "an index that is a folder": (lambda index, _: (index.unlink(), index.mkdir(0o700)), "is no file"),
    "another version": (lambda index, _: index.write_bytes(index.read_bytes().replace(b'"v":1', b'"v":2', 1)), "version 2"),
    "another run's": (lambda index, _: resigned(index, edited(run="another")), "another run, another"),
    "no JSON": (lambda index, _: resigned(index, lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."), "decode|utf-8"),
    "nested too deep": (lambda index, _: resigned(index, lambda _: b"[" * 200_000), "too deep"),
    "endless digits": (lambda index, _: resigned(index, lambda b: b.replace(b'"step":11', b'"step":' + b"1" * 10_000)), "digits"),
    "a list": (lambda index, _: resigned(index, lambda _: b"[1, 2]"), "does not say"),
    "no state": (lambda index, _: resigned(index, edited(state=[])), "does not say"),
    "an unknown verdict": (lambda index, _: resigned(index, edited(verdict={"condition": "x", "because": ""})), "Condition"),
    "slices of nothing": (lambda index, _: resigned(index, edited(slice=0)), "does not say"),
    "a block elsewhere": (
        lambda index, _: resigned(index, lambda b: b.replace(json.loads(b)["blocks"][0]["file"].encode(), b"../../x")),
        "block that cannot be",
    ),
    "fewer hashes": (
        lambda index, _: resigned(index, lambda b: edited(blocks=[{**json.loads(b)["blocks"][0], "xxh3": []}])(b)),
        "block that cannot be",
    ),
    "a tensor behind the end": (tensor("float32", [2501], None, 0, 0), "lies where it cannot"),
    "a tensor before the beginning": (tensor("float32", [1], None, 0, -4), "lies where it cannot"),
    "a tensor of another block": (tensor("float32", [1], None, 1, 0), "lies where it cannot"),
    "a stride that leaves it": (tensor("float32", [2, 2], [2000, 1], 0, 0), "lies where it cannot"),
    "a negative size": (tensor("float32", [-1], None, 0, 0), "cannot be"),
    "huge sizes": (tensor("float32", [2**59, 2**59], None, 0, 0), "lies where it cannot"),
    "a tensor of objects": (tensor("object", [1], None, 0, 0), "cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_what_is_not_what_it_was_is_refused_and_the_next_one_is_used(harm, base):
    folder = killed(base)
    do, why = HARM[harm]
    do(*newest_files(folder))
    found = read_states("run", base=base)
    assert steps(found) == [10]
    (reason,) = reasons(found)
    assert re.search(why, reason), reason


@as_root
@pytest.mark.parametrize("which", ["index", "block", "folder", "root", "base"])
def test_what_belongs_to_somebody_else_is_refused(which, base):
    folder = killed(base)
    index, block = newest_files(folder)
    path = {"index": index, "block": block, "folder": folder, "root": folder.parent, "base": base}[which]
    os.chown(path, 65534, 65534)
    found = read_states("run", base=base)
    assert steps(found) == ([10] if which in ("index", "block") else [])
    assert "belongs to user 65534" in reasons(found)[0]
    if which not in ("index", "block"):
        with pytest.raises(SharedMemoryError, match="belongs to user 65534"):
            SharedRun.open("run", base=base)


@pytest.mark.parametrize("which", ["folder", "root", "base"])
def test_a_folder_that_others_may_write_to_is_refused(which, base):
    folder = killed(base)
    path = {"folder": folder, "root": folder.parent, "base": base}[which]
    path.chmod(0o777)
    why = "not sticky" if which == "base" else "mode 0777"
    assert why in reasons(read_states("run", base=base))[0]
    with pytest.raises(SharedMemoryError, match=why):
        SharedRun.open("run", base=base)
    base.chmod(0o1777)
    if which == "base":
        SharedRun.open("run", base=base).remove()


@pytest.mark.parametrize("which", ["folder", "root"])
def test_a_link_in_the_place_of_a_folder_is_refused(which, base, tmp_path):
    folder = killed(base)
    path = {"folder": folder, "root": folder.parent}[which]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(path, elsewhere)
    elsewhere.chmod(0o700)
    shutil.rmtree(path)
    path.symlink_to(elsewhere)
    assert "symbolic link" in reasons(read_states("run", base=base))[0]
    with pytest.raises(SharedMemoryError, match="symbolic link"):
        SharedRun.open("run", base=base)


def test_without_shared_memory_it_is_said_why(tmp_path):
    for where, why in ((tmp_path / "none", "No such file"), (tmp_path / "file", "no folder")):
        (tmp_path / "file").touch()
        with pytest.raises(SharedMemoryError, match=why):
            SharedRun.open("run", base=where)


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
    run = SharedRun.open("run", base=base)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    try:
        run.leave()
        SharedRun.open("run", base=base).remove()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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
        killed(
            small, "run", "kill", attempt, MIB - 8192, 0.5
        )  # with what is left of the last one there is no room for two
        assert steps(read_states("run", base=small)) == [attempt + 1, attempt]
        status = os.statvfs(small)
        assert status.f_bavail * status.f_frsize >= 2 * MIB


def test_the_name_of_a_run_is_that_of_its_folder_and_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out put").mkdir()
    name = run_name("out put")
    assert name == run_name(tmp_path / "out put") == run_name(tmp_path / "x" / ".." / "out put")
    assert name.startswith("out-put-")
    assert len({name, run_name("other"), run_name("out put", rank=3), run_name("/"), run_name(tmp_path)}) == 5
    assert all("/" not in run_name(path) for path in ("/", "..", "a" * 300, "\u00fc/\n"))

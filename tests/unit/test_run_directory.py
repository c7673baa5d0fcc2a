"""One process writes to a run directory; real processes try to break that."""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from self_healing.core import run_directory
from self_healing.core.errors import ConfigError, RunDirectoryLocked
from self_healing.core.run_directory import ledger_path, lock_run_directory

SRC = Path(run_directory.__file__).parents[2]


@pytest.fixture
def spawn() -> Callable[[str, Path], subprocess.Popen[str]]:
    def start(code: str, run_dir: Path) -> subprocess.Popen[str]:
        prelude = "import os, sys, time\nfrom self_healing.core.run_directory import *\nrun_dir = sys.argv[1]\n"
        return subprocess.Popen(
            [sys.executable, "-c", prelude + code, str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SRC)},
        )

    return start


HOLD = "lock = lock_run_directory(run_dir)\nprint('held', flush=True)\nsys.stdin.read()\n"


def test_the_ledger_of_a_rank_has_its_own_file() -> None:
    assert ledger_path("runs/a", 0) == Path("runs/a/healing/ledger.jsonl")
    assert ledger_path("runs/a", 3) == Path("runs/a/healing/ledger.rank3.jsonl")


def test_the_lock_file_is_private_and_says_who_holds_it(tmp_path: Path) -> None:
    with lock_run_directory(tmp_path / "new" / "run") as lock:
        assert (lock.held, lock.enforced) == (True, True)
        assert stat.S_IMODE(lock.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(lock.path.parent.stat().st_mode) == 0o700
        holder = json.loads(lock.path.read_text())
        assert holder["pid"] == os.getpid()
        assert holder["host"] == os.uname().nodename
        assert holder["since"].startswith("20")
    assert not lock.held
    assert lock.path.read_text() == ""


def test_a_second_lock_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first = lock_run_directory(tmp_path)
    with pytest.raises(RunDirectoryLocked, match=f"process {os.getpid()} .*release the lock this process holds"):
        lock_run_directory(tmp_path / "." / "")
    first.release()
    first.release()
    lock_run_directory(tmp_path).release()


def test_another_process_is_refused_with_a_helpful_text(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn(HOLD, tmp_path)
    assert child.stdout.readline() == "held\n"
    with pytest.raises(RunDirectoryLocked) as caught:
        lock_run_directory(tmp_path)
    text = str(caught.value)
    for part in (str(child.pid), os.uname().nodename, "since 20", str(tmp_path / "healing" / "lock"), "another run"):
        assert part in text
    child.communicate()
    lock_run_directory(tmp_path).release()


def test_a_holder_that_has_not_signed_yet_is_respected(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn(HOLD.replace("print", "os.truncate(lock.path, 0)\nprint"), tmp_path)
    child.stdout.readline()
    with pytest.raises(RunDirectoryLocked, match="has not written its name"):
        lock_run_directory(tmp_path)
    child.communicate()


def test_the_lock_dies_with_a_killed_process(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    child = spawn(HOLD, tmp_path)
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.communicate()
    with lock_run_directory(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_a_forked_worker_does_not_keep_its_dead_parents_lock(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    fork = (
        "lock = lock_run_directory(run_dir)\n"
        "worker = os.fork()\n"
        "if worker == 0:\n    print(os.getpid(), flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "sys.stdin.read()\n"
    )
    child = spawn(fork, tmp_path)
    worker = int(child.stdout.readline())
    with pytest.raises(RunDirectoryLocked):
        lock_run_directory(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    os.kill(worker, 0)  # still there
    lock_run_directory(tmp_path).release()
    child.communicate()


def test_a_forked_workers_release_does_not_free_the_parents_lock(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    fork = (
        "lock = lock_run_directory(run_dir)\n"
        "worker = os.fork()\n"
        "if worker == 0:\n    assert not lock.held\n    lock.release()\n    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), flush=True)\nsys.stdin.read()\n"
    )
    child = spawn(fork, tmp_path)
    assert child.stdout.readline() == "7\n"
    with pytest.raises(RunDirectoryLocked, match=f"process {child.pid} "):
        lock_run_directory(tmp_path)
    child.communicate()


def test_a_lock_is_free_at_once_although_a_program_was_just_started(tmp_path: Path) -> None:
    # Between fork and exec a program being started holds copies of all descriptors; this one keeps its copy.
    with lock_run_directory(tmp_path) as lock:
        assert lock._descriptor is not None
        sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock._descriptor])
    lock_run_directory(tmp_path).release()
    sleeper.communicate()


def test_a_started_program_does_not_keep_its_dead_parents_lock(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    start = (
        "import subprocess\nlock = lock_run_directory(run_dir)\n"
        "print(subprocess.Popen(['cat'], close_fds=False).pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    child = spawn(start, tmp_path)
    sleeper = int(child.stdout.readline())
    child.wait()
    os.kill(sleeper, 0)  # still there
    lock_run_directory(tmp_path).release()
    child.communicate()


def test_a_symbolic_link_in_the_locks_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "healing").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "healing" / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match="symbolic link"):
        lock_run_directory(tmp_path)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_directory_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file/healing/lock"):
        lock_run_directory(tmp_path / "file")


NO_FLOCK = """
import ctypes, logging, struct
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
# A seccomp filter: flock (system call 73) answers ENOLCK (37), all else is allowed.
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 73), (0x06, 0, 0, 0x00050000 | 37), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, program, 0, 0):
    print("no seccomp"); sys.exit()
lock = lock_run_directory(run_dir)
print(lock.held, lock.enforced)
try:
    lock_run_directory(run_dir)
except Exception as error:
    print(type(error).__name__)
lock.release()
"""


@pytest.mark.skipif((platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="a Linux system call filter")
def test_a_file_system_without_locks_gives_a_warning(tmp_path: Path, spawn) -> None:  # type: ignore[no-untyped-def]
    said = spawn(NO_FLOCK, tmp_path).communicate()[0]
    if "no seccomp" in said:
        pytest.skip("the kernel does not let us filter system calls")
    assert said.splitlines()[0].startswith(
        f"WARNING {tmp_path}/healing/lock: the file system offers no locks (No locks"
    )
    assert said.splitlines()[1:] == ["True False", "RunDirectoryLocked"]


def test_nothing_is_logged_on_a_normal_file_system(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        lock_run_directory(tmp_path).release()
    assert not caplog.records

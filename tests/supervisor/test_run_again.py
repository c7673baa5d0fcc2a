"""A run directory that an earlier job has used: nothing of it is taken for this one's, and what it could not remove is."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from self_healing.core.heartbeat import read_heartbeat, write_heartbeat
from self_healing.readers.formats.run_folder import RunFolder
from self_healing.readers.source import Candidate, Reading
from self_healing.report.postmortem import read_postmortem
from self_healing.supervisor.attempting import _Beats, put_away

from .test_heartbeat_file import BEAT


def leave_attempts(run_dir, count, text):
    """Leave what a job of so many attempts does."""
    for number in range(1, count + 1):
        folder = run_dir / "healing" / f"attempt-{number}"
        folder.mkdir(parents=True)
        for name in ("output.log", "output.old.log"):
            (folder / name).write_text(text)


def test_of_two_jobs_in_one_folder_each_is_told_of_by_itself(heal):
    heal.run("exit-3", "finish")
    (heal.run_dir / "healing" / "attempt-1" / "output.old.log").write_text("of the first job")
    shutil.rmtree(heal.folder / "state")
    assert heal.run("script-error").code == 1
    healing, earlier = heal.run_dir / "healing", heal.run_dir / "healing" / "earlier"
    assert [path.relative_to(healing).as_posix() for path in healing.glob("attempt-*/*")] == ["attempt-1/output.log"]
    assert sorted(path.name for path in earlier.rglob("*.log")) == ["output.log", "output.log", "output.old.log"]
    read = RunFolder().parts(Candidate(heal.run_dir, True, b"", 0), Reading())
    assert healing / "attempt-1" / "output.log" in read
    assert not [path for path in read if earlier in path.parents]
    told = read_postmortem(heal.run_dir / "postmortem.json")
    assert [each["attempt"] for each in told.attempts] == [1]
    assert ([each["class"] for each in told.incidents], told.recovery_actions) == (heal.causes()[-1:], [])


def test_the_job_before_that_one_is_not_kept(tmp_path):
    for job in ("first", "second"):
        leave_attempts(tmp_path, 2, job)
        assert put_away(tmp_path) == []
    assert {path.read_text() for path in (tmp_path / "healing" / "earlier").rglob("*.log")} == {"second"}


def test_a_copy_of_a_checkpoint_that_a_killed_supervisor_has_left_is_removed(tmp_path):
    copy = tmp_path / "healing" / "attempt-2" / "slower" / "checkpoint-20"
    copy.mkdir(parents=True)
    (copy / "optimizer.pt").write_text("large")
    put_away(tmp_path)
    assert not list((tmp_path / "healing").rglob("checkpoint-*"))


def test_attempts_that_cannot_be_put_away_are_told_of(tmp_path):
    (tmp_path / "healing" / "attempt-1").mkdir(parents=True)
    (tmp_path / "healing" / "earlier").write_text("a file in its place")
    (said,) = put_away(tmp_path)
    assert "could not be put away" in said


def test_whoever_makes_a_copy_ends_with_the_supervisor():
    helper = "from self_healing.supervisor.slower_checkpoint import end_with_parent as e; e(); print(1, flush=True); import time; time.sleep(60)"
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {helper!r}]); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.stdout.readline()
        parent.kill()
    until = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" and time.monotonic() < until:
        time.sleep(0.02)
    if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it goes on")


def test_a_heartbeat_is_known_by_its_process_whatever_the_clock_says(tmp_path):
    write_heartbeat(tmp_path, BEAT)
    beats = _Beats(tmp_path, 3)
    assert (beats.heals(), beats.home()) == (False, None), "it is left from a job before, of the same number"
    write_heartbeat(tmp_path, replace(BEAT, pid=4712, started_s=BEAT.started_s - 3600))
    assert (beats.heals(), beats.step(None)) == (True, 17)
    assert beats.all() == [read_heartbeat(tmp_path)]

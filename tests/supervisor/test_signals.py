"""Signals to the supervisor that do not end it at once, and those that come while it is busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from self_healing.supervisor import attempting, loop, running
from self_healing.supervisor.outcome import EndedBy
from self_healing.supervisor.running import Running, Start
from self_healing.supervisor.settings import RunSettings
from self_healing.supervisor.signals import SignalDesk, ToldToEnd

from .conftest import MARK, SOURCE

SAVES = "import signal, sys; signal.signal(signal.SIGUSR2, lambda *_: sys.exit(75))"
GOES_ON = "print('step 1: loss 1.0', flush=True); import time; time.sleep(600)"


def send_soon(number, seconds=0.3):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    return timer


@pytest.mark.parametrize(("before", "code"), [(SAVES, 75), ("", 128 + signal.SIGUSR2)], ids=["saves", "dies of it"])
def test_the_second_warning_signal_is_passed_on_and_ends_the_job_if_it_ends_the_command(heal, before, code):
    process = heal.start(command=[sys.executable, "-c", f"{before}\n{GOES_ON}"], SLURM_JOB_ID="4711")
    while "step 1" not in heal.output(1):
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR2)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, len(heal.causes())) == (code, 1)
    assert "SIGUSR2: passed on" in err
    assert "requeue" not in err


def states(processes):
    return {process.status() for process in processes}


def test_control_z_stops_the_command_and_all_it_has_started_and_they_go_on_together(heal):
    script = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {GOES_ON!r}], start_new_session=True).wait()"
    )
    command = [sys.executable, "-m", "self_healing", "run", "--run-dir", str(heal.run_dir), "--grace", "0", "--"]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", script], cwd=heal.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCE), MARK: heal.mark}, process_group=0,
    )  # fmt: skip
    heal.started.append(process)
    while "step 1" not in heal.output(1):
        time.sleep(0.02)
    supervisor = psutil.Process(process.pid)
    (shim,) = supervisor.children()
    everything = [supervisor, *shim.children(recursive=True)]
    for number, awaited in ((signal.SIGTSTP, {"stopped"}), (signal.SIGCONT, {"sleeping"})):
        process.send_signal(number)
        until = time.monotonic() + 5
        while states(everything) != awaited and time.monotonic() < until:
            time.sleep(0.02)
        assert states(everything) == awaited
    process.terminate()
    assert process.wait(10) == 128 + signal.SIGTERM


def test_what_takes_long_is_given_up_for_a_signal_that_ends_the_job():
    with SignalDesk() as desk:
        timer, began_s = send_soon(signal.SIGTERM), time.monotonic()
        with pytest.raises(ToldToEnd), desk.giving_up():
            subprocess.run(["sleep", "60"], check=False)
        assert time.monotonic() - began_s < 2
        with pytest.raises(ToldToEnd), desk.giving_up():
            pytest.fail("it is not begun")
        timer.join()
        assert (desk.taken(), desk.asked_to_end) == ([signal.SIGTERM], signal.SIGTERM)


def test_a_signal_is_heard_while_stacks_are_saved(tmp_path, monkeypatch):
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(running, "LOOK_AT_PROCESSES_S", 0.1)
    start = Start(number=1, argv=["sleep", "60"], environ=os.environ, cwd=tmp_path, folder=tmp_path / "attempt-1")
    with SignalDesk() as desk:
        timer, began_s = send_soon(signal.SIGTERM, 1.0), time.monotonic()
        attempt = Running(start, RunSettings(hang_timeout=0.3, grace=1), desk).run()
        timer.join()
    assert time.monotonic() - began_s < 3
    assert attempt.ended_by is EndedBy.SIGNAL


def test_a_signal_is_heard_while_a_checkpoint_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "become_subreaper", lambda: None)  # the test's own process is none
    monkeypatch.setattr(attempting, "newest_sound", lambda *_, **__: time.sleep(60))
    settings = RunSettings(command=("sh", "-c", "exit 3"), run_dir=tmp_path)
    timer, began_s = send_soon(signal.SIGTERM, 1.5), time.monotonic()
    code = loop.supervise(settings, tmp_path, os.environ, lambda _text: None)
    timer.join()
    assert time.monotonic() - began_s < 4
    assert code == 3


def test_a_silence_that_nobody_listened_to_is_no_hang(tmp_path, monkeypatch):
    """As after Ctrl-Z, or a virtual machine that was stopped."""
    monkeypatch.setattr(running, "LOOK_AT_PROCESSES_S", 0.1)
    monkeypatch.setattr(running, "AWAY_S", 0.6)
    start = Start(number=1, argv=["sleep", "1.5"], environ=os.environ, cwd=tmp_path, folder=tmp_path / "attempt-1")
    with SignalDesk() as desk:
        attempt_of = Running(start, RunSettings(hang_timeout=1.2), desk)
        wait = desk.wait
        monkeypatch.setattr(desk, "wait", lambda seconds, *descriptors: (time.sleep(0.9), wait(seconds, *descriptors)))
        assert attempt_of.run().ended_by is EndedBy.ITSELF


def test_a_working_directory_that_is_gone_is_one_sentence(tmp_path):
    command = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "self_healing", "run", "--", "true"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "working directory" in done.stderr
    assert "internal error" not in done.stderr

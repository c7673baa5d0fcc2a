"""A training that heals itself, killed with -9 under `heal run`: it ends with the weights of one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from self_healing.core.goodput import TimeClass
from self_healing.core.heartbeat import read_heartbeat
from self_healing.core.run_directory import ledger_path, supervisor_ledger_path
from self_healing.core.run_ledgers import iter_run
from self_healing.diagnosis.inputs import diagnose_input
from self_healing.report.postmortem import read_postmortem
from self_healing.report.where_time_went import where_time_went
from self_healing.snapshots.shared_folder import VARIABLE as SHARED_MEMORY

from .conftest import Heal

HEALED = Path(__file__).with_name("healed.py")
STEPS = 150


@pytest.fixture(autouse=True, scope="module")
def shared_memory():
    """A folder of its own: in the one of the user only four dead runs are kept, and other tests kill theirs, too."""
    if not os.access("/dev/shm", os.W_OK):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="test-self-healing-", dir="/dev/shm") as folder:
        os.environ[SHARED_MEMORY] = folder
        yield
        del os.environ[SHARED_MEMORY]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    subprocess.run([sys.executable, str(HEALED), str(folder), str(STEPS)], check=True, capture_output=True)
    return (folder / "weights.txt").read_text()


def assert_its_time_adds_up(heal, wall_s):
    """All the time of `heal run` but its own start and end is told, and what a kill has made uncertain is little."""
    run = iter_run(ledger_path(heal.run_dir), supervisor_ledger_path(heal.run_dir))
    told = where_time_went(run)
    assert told.attempts == 6
    assert told.wall_s == pytest.approx(wall_s, abs=5), told
    assert told.seconds[TimeClass.DOWN] == 0
    assert told.seconds[TimeClass.RESTARTS] > told.seconds[TimeClass.START_UP] > 0
    assert told.seconds[TimeClass.PRODUCTIVE] > 0
    # Up to a second of lines is missing of each killed process, and the moment until it is reaped.
    assert told.seconds[TimeClass.UNKNOWN] < 5 * 3, told


def kill_at_random(heal, times, draw):
    """Kill the training so often, each time after some steps more, and return how many steps it had come each time."""
    process = heal.start(
        "--grace",
        "5",
        "--max-retries",
        str(times + 2),
        command=[sys.executable, str(HEALED), str(heal.run_dir), str(STEPS)],
    )
    reached = []
    for number in range(1, times + 1):
        wanted = (STEPS - 10) * number // (times + 1) + draw.randint(-5, 5)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            beat = read_heartbeat(heal.run_dir)
            if beat is not None and beat.launch == number and beat.step >= wanted and beat.ended is None:
                break
            assert process.poll() is None, process.communicate()
            time.sleep(draw.random() * 0.05)
        os.kill(beat.pid, signal.SIGKILL)
        reached.append(beat.step)
    _, err = process.communicate(timeout=120)
    return process.returncode, reached, err


def assert_resumed(heal, reached):
    """Each process goes on from where the one before was killed, but for the steps since its newest state."""
    began = [int(line) for line in (heal.run_dir / "began.txt").read_text().split()]
    assert began[0] == 0
    assert len(began) == len(reached) + 1
    for step, killed_at in zip(began[1:], reached, strict=True):
        assert killed_at - 8 <= step, (began, reached)  # how far it had come was said up to a second before


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.soak
def test_killed_five_times_it_ends_as_if_it_had_been_left_alone(heal, undisturbed):
    began = time.monotonic()
    code, reached, err = kill_at_random(heal, 5, random.Random(3))
    assert code == 0, err
    assert_its_time_adds_up(heal, time.monotonic() - began)
    assert (heal.run_dir / "weights.txt").read_text() == undisturbed
    assert heal.causes() == ["killed_unknown"] * 5 + [""]
    assert_resumed(heal, reached)
    told = read_postmortem(heal.run_dir / "postmortem.json")
    assert told.exit_reason == "completed"
    assert [each["attempt"] for each in told.attempts] == [1, 2, 3, 4, 5, 6]
    of_supervisor = [each for each in told.incidents if each["name"] == "exited"]
    assert [(each["attempt"], each["class"]) for each in of_supervisor] == [(n, "killed_unknown") for n in range(1, 6)]
    restarts = [each["attempt"] for each in told.recovery_actions if each["actions"] == ["restart"]]
    assert restarts == [1, 2, 3, 4, 5]
    killed = [found for found in diagnose_input(heal.run_dir).findings if found.fine == "killed_unknown"]
    assert [str(found.severity) for found in killed] == ["info"], (
        "what was overcome is told, and is no trouble any more"
    )


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_killed_fifty_times(tmp_path, undisturbed):
    draw = random.Random(5)
    for number in range(10):
        heal = Heal(tmp_path / str(number), f"soak-{number}-{time.time_ns()}")
        heal.folder.mkdir()
        code, reached, err = kill_at_random(heal, 5, draw)
        assert code == 0, err
        assert (heal.run_dir / "weights.txt").read_text() == undisturbed
        assert_resumed(heal, reached)
        assert heal.survivors(5.0) == []

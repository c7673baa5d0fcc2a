"""The same script is started again after its process was killed: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal

import pytest

from self_healing.snapshots.shared_folder import root_path, run_name

from .killed_training import EVERY, ForkServer

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SAVING = {"save_strategy": "steps", "save_steps": EVERY}
ON_DISK = {"config": {"shared_memory": False}, "changes": SAVING}


@pytest.fixture(scope="module")
def trainings(own_shared_memory):
    if own_shared_memory is None:
        pytest.skip("there is no shared memory here")
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def nothing_is_left(own_shared_memory):
    yield
    assert list(own_shared_memory.iterdir()) == []


@pytest.fixture(scope="module")
def undisturbed(trainings, tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind="dropout", **settings):
        key = json.dumps([kind, settings])
        if key not in done:
            done[key] = trainings.run(tmp_path_factory.mktemp("stock"), kind=kind, guarded=False, **settings)
        return done[key]

    return get


def killed(trainings, folder, *kill, **job):
    assert trainings.run(folder, kill=kill, **job) == signal.SIGKILL, (folder / "output.txt").read_text()


def gone_on(trainings, folder, **job):
    result = trainings.run(folder, **job)
    assert "error" not in result, result["error"]
    return result


def assert_same(result, stock, *, with_log=True):
    assert (result["step"], result["weights"]) == (stock["step"], stock["weights"])
    if with_log:
        assert result["log"] == stock["log"]


def notes(folder, name):
    lines = (folder / "healing" / "ledger.jsonl").read_text().splitlines()
    return [entry["body"]["text"] for entry in map(json.loads, lines) if entry["name"] == name]


# -- killed between two steps ----------------------------------------------------------------------------

KINDS = ["dropout", "accumulation-4", "lora", "changing-buffers", "scheduler-and-sgd", "finite-stream", "sft", "dpo", "grpo"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_ends_as_if_nothing_had_happened(kind, trainings, undisturbed, tmp_path):
    """Killed in the second epoch, in the middle of two states; weights and log are compared."""
    killed(trainings, tmp_path, "step", 8, kind=kind)
    assert not (tmp_path / "postmortem.json").exists()
    result = gone_on(trainings, tmp_path, kind=kind)
    assert_same(result, undisturbed(kind))
    assert result["first"] == 6
    (told,) = notes(tmp_path, "resuming")
    assert told.startswith("training goes on after step 6 from shared memory")
    postmortem = json.loads((tmp_path / "postmortem.json").read_text())
    assert (postmortem["exit_reason"], len(postmortem["attempts"])) == ("completed", 2)


def kill_again_and_again(trainings, folder, times, **job):
    """Kill a run at random steps until it was killed so often; return the steps it began and was killed at."""
    draw, at = random.Random(11), 0
    for _ in range(times):
        at = draw.randint(at + 1, min(at + 4, 12)) if at < 12 else 12
        killed(trainings, folder, "step", at, **job)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_killed_five_times_at_random_steps(where, trainings, undisturbed, tmp_path):
    job = ON_DISK if where == "disk" else {}
    kill_again_and_again(trainings, tmp_path, 5, **job)
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed(), with_log=where == "memory")
    assert 12 - result["first"] <= EVERY

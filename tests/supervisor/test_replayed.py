"""Decisions of `heal run`, repeated from its ledger. The fixture does so with what every other test has had supervised."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from self_healing.cli.main import main
from self_healing.core.run_directory import supervisor_ledger_path
from self_healing.readers import open_recording
from self_healing.replay import replay

RATE = ("--learning_rate", "2e-4")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The ledger of a job with a NaN, a shortage of memory for which nothing can be changed, and no end but that."""
    folder = tmp_path_factory.mktemp("job")
    script = folder / "train.py"
    script.write_text(
        "import sys, time\n"
        "is_too_high = float(sys.argv[-1]) > 1.5e-4\n"
        "for step in range(1, 6):\n"
        "    print(f'step {step}: train loss {float(\"nan\") if is_too_high else 1.0}', flush=True)\n"
        "time.sleep(80 * is_too_high)  # until it is ended\n"
        "sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.')\n"
    )
    command = [
        sys.executable,
        "-m",
        "self_healing",
        "run",
        "--run-dir",
        str(folder / "run"),
        "--grace",
        "1",
        "--backoff",
        "0",
    ]
    ran = subprocess.run(
        [*command, "--", sys.executable, str(script), *RATE], check=False, capture_output=True, text=True, timeout=90
    )
    assert ran.returncode == 1, ran.stderr
    return supervisor_ledger_path(folder / "run")


def changed(ledger, tmp_path, name, **values):
    """Return a ledger in which the first note of that name says something else; None takes it out."""
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    body = next(entry["body"] for entry in entries if entry["name"] == name)
    body.update(values)
    for key in [key for key, value in values.items() if value is None]:
        del body[key]
    path = tmp_path / "ledger.supervisor.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_a_replay_decides_as_the_supervisor_did(ledger):
    result = replay(open_recording(ledger))
    assert [(each.attempt, each.cause, each.decision) for each in result.decisions] == [
        (1, "nan_loss", "again"),
        (2, "oom_gpu", "stop"),
    ]
    assert result.decisions[0].changes == ("learning_rate: 2.00e-04 -> 1.33e-04",)
    assert (result.exact, result.differences, result.approximate) == (True, [], [])
    assert [(each.name, each.fine) for each in result.incidents] == [("exited", "nan_loss"), ("exited", "oom_gpu")]


def test_the_command_tells_it(ledger, capsys):
    assert main(["replay", str(ledger.parents[1])]) == 1  # the run directory: there is nothing else in it
    told = " ".join(capsys.readouterr().out.split())
    assert "ledger of a supervisor, 2 attempts" in told
    assert "What heal run decides" in told
    assert "The replayed decisions equal the recorded ones." in told
    assert main(["replay", "--json", str(ledger)]) == 1
    made = json.loads(capsys.readouterr().out)
    assert [each["decision"] for each in made["decisions"]] == ["again", "stop"]
    assert made["recording"]["exact"] is True


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("decided", {"wish": "a smaller batch"}, "wish was a smaller batch, is a lower learning rate"),
        ("decided", {"decision": "stop"}, "decision was stop, is again"),
        ("attempt-ended", {"class": "script_error"}, "decision was again, is stop"),
        ("attempt-ended", {"goes_on": "process 7 cannot be ended"}, "decision was again, is stop"),
        ("attempt-began", {"settings": {"max_retries": 0, "backoff": 0.0}}, "decision was again, is stop"),
    ],
)
def test_a_decision_that_is_another_one_is_named(ledger, tmp_path, name, values, told):
    result = replay(open_recording(changed(ledger, tmp_path, name, **values)))
    assert result.exact is False
    assert [told in sentence for sentence in result.differences] == [True]


def test_why_nothing_could_be_changed_is_part_of_what_a_decision_depends_on(ledger, tmp_path):
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    last = [entry["body"] for entry in entries if entry["name"] == "decided"][-1]
    assert last["no_room"]
    last["no_room"] = ""
    path = tmp_path / "ledger.supervisor.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert any("decision was stop, is again" in each for each in replay(open_recording(path)).differences)


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("attempt-began", {"settings": None}, "settings of `heal run` are missing"),
        ("attempt-ended", {"ended_by": "nobody"}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"status": None, "class": None}, "(note attempt-ended) is damaged"),
        ("attempt-began", {"settings": {"max_retries": "many"}}, "(note attempt-began) is damaged"),
    ],
)
def test_what_cannot_be_taken_in_is_said_and_the_rest_is_replayed(ledger, tmp_path, name, values, told):
    result = replay(open_recording(changed(ledger, tmp_path, name, **values)))
    assert any(told in sentence for sentence in result.approximate)
    assert result.decisions


def test_another_job_in_the_same_folder_begins_anew(ledger, tmp_path):
    path = tmp_path / "ledger.supervisor.jsonl"
    path.write_text(ledger.read_text() * 2)
    result = replay(open_recording(path))
    assert (len(result.decisions), result.exact) == (4, True)

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


def test_beside_other_files_its_decisions_are_counted(ledger, tmp_path, capsys):
    log = tmp_path / "log.csv"
    log.write_text("step,loss\n" + "".join(f"{step},2.0\n" for step in range(40)))
    assert main(["replay", str(ledger), str(log)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "again; stop" in told
    assert "2 files: 1 without warnings, 1 with, 0 unreadable." in told


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
        ("attempt-began", {"settings": None}, "without settings: its decisions cannot be repeated"),
        ("attempt-began", {"settings": {"max_retries": 3}}, "without settings"),
        ("attempt-began", {"settings": {"max_retries": "many", "backoff": 0.0}}, "(note attempt-began) is damaged"),
        ("attempt-began", {"attempt": "x"}, "(note attempt-began) is damaged"),
        ("attempt-ended", {"metric_lines": None}, "without metric_lines"),
        ("attempt-ended", {"ended_by": "nobody"}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"ended_by": {"$float": "NaN"}}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"succeeded": "false"}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"step": 9.5}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"step": {"$float": "Infinity"}}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"attempt": True}, "(note attempt-ended) is damaged"),
        ("attempt-ended", {"attempt": 7}, "what there was before attempt 7 is missing"),
        ("decided", {"no_room": None}, "without no_room"),
        ("decided", {"changes": "many"}, "(note decided) is damaged"),
        ("decided", {"attempt": 9}, "how attempt 9 ended is missing"),
    ],
)
def test_what_cannot_be_taken_in_is_a_doubt_and_no_difference(ledger, tmp_path, name, values, told):
    result = replay(open_recording(changed(ledger, tmp_path, name, **values)))
    assert any(told in sentence for sentence in result.approximate)
    assert (result.differences, result.exact) == ([], None)


def without(ledger, tmp_path, *numbers):
    """Return a ledger without some of its lines, by their numbers from 0."""
    path = tmp_path / "ledger.supervisor.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    path.write_text("".join(line for number, line in enumerate(lines) if number not in numbers))
    return path


def places(ledger, name):
    return [number for number, line in enumerate(ledger.read_text().splitlines()) if f'"name":"{name}"' in line]


@pytest.mark.parametrize(
    ("line", "told", "exact"),
    [
        (("attempt-began", 0), "what there was before attempt 1 is missing", None),
        (("attempt-ended", 0), "how attempt 1 ended is missing", None),
        (("attempt-ended", 1), "how attempt 2 ended is missing", True),  # what followed the first is as it was
        (("decided", 0), "what there was before attempt 2 is missing", None),
        (("decided", 1), "ends before it says what follows the last attempt", True),
    ],
)
def test_a_line_that_is_missing_is_said(ledger, tmp_path, line, told, exact):
    name, which = line
    result = replay(open_recording(without(ledger, tmp_path, places(ledger, name)[which])))
    assert any(told in sentence for sentence in result.approximate)
    assert (result.differences, result.exact) == ([], exact)


def test_where_nothing_was_decided_yet_nothing_is_said_to_be_equal(ledger, tmp_path, capsys):
    first = places(ledger, "decided")[0]
    path = without(ledger, tmp_path, *range(first, 100))
    assert main(["replay", str(path)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "equal" not in told
    assert "ends before it says what follows the last attempt" in told


def test_a_ledger_of_an_earlier_version_is_called_that(ledger, tmp_path, capsys):
    entries = [json.loads(line) for line in ledger.read_text().splitlines()]
    for entry in entries:
        for key in ("settings", "no_room", "step", "metric_lines", "goes_on", "succeeded"):
            entry["body"].pop(key, None)
    path = tmp_path / "ledger.supervisor.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert main(["replay", str(path)]) == 2
    assert "an earlier version has written this ledger" in capsys.readouterr().err


def test_a_folder_with_a_ledger_of_its_own_points_to_the_other_one(ledger, tmp_path, capsys):
    (tmp_path / "healing").mkdir()
    other = supervisor_ledger_path(tmp_path)
    other.write_text(ledger.read_text())
    lines = [json.dumps({"step": step, "loss": 2.0, "learning_rate": 1e-5}) for step in range(40)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [json.loads(line) for line in lines]}))
    assert main(["replay", str(tmp_path)]) == 0
    assert f"heal replay {other}" in capsys.readouterr().out.replace("\n", "")
    assert main(["replay", str(other), "--set", "rules.loss-spike.sigmas=8"]) == 1
    assert "do not depend on the configuration" in " ".join(capsys.readouterr().out.split())


def test_another_job_in_the_same_folder_begins_anew(ledger, tmp_path):
    path = tmp_path / "ledger.supervisor.jsonl"
    path.write_text(ledger.read_text() * 2)
    result = replay(open_recording(path))
    assert (len(result.decisions), result.exact) == (4, True)

"""Real recordings of other people's runs, from `../shared/cases`: no crash, no false alarm on the healthy ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from self_healing.cli.main import main
from self_healing.core.errors import InputError
from self_healing.readers import open_recording
from self_healing.replay import replay

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
ROWS = [json.loads(line) for line in (CASES / "states.jsonl").read_text().splitlines()] if CASES.is_dir() else []
UNREADABLE = {"not_hf_format", "lfs_pointer"}

pytestmark = pytest.mark.skipif(not ROWS, reason=f"the recorded cases are not here: {CASES} is absent")


@pytest.fixture(scope="module")
def results():
    """Return what a replay makes of every file, or the sentence that refuses it."""
    found = {}
    for row in ROWS:
        try:
            found[row["id"]] = replay(open_recording(CASES / row["file"]))
        except InputError as error:
            found[row["id"]] = str(error)
    return found


def readable(results):
    return {row["id"]: (row, results[row["id"]]) for row in ROWS if not isinstance(results[row["id"]], str)}


def test_every_file_is_read_or_refused_in_one_sentence(results):
    refused = {row["id"]: results[row["id"]] for row in ROWS if isinstance(results[row["id"]], str)}
    assert all("\n" not in sentence and ".json: " in sentence for sentence in refused.values())
    expected = {row["id"] for row in ROWS if UNREADABLE & set(row["labels"])}
    assert expected <= set(refused)
    others = set(refused) - expected
    assert all("insufficient_data" in row["labels"] for row in ROWS if row["id"] in others), refused


def test_every_entry_of_a_readable_file_is_seen(results):
    for row, result in readable(results).values():
        history = json.loads((CASES / row["file"]).read_text())["log_history"]
        expected = sum("train_runtime" not in entry for entry in history)
        assert result.observations == expected, row["id"]
        assert (result.runs, result.torn) == (1, 0)


def test_no_healthy_run_would_have_been_returned(results):
    """All that are labelled so, those included of which it can be argued."""
    healthy = {key: result for key, (row, result) in readable(results).items() if row["healthy"]}
    assert len(healthy) >= 15
    returns = {
        key: [(each.plan.step, each.plan.incident) for each in result.plans if "roll-back" in each.plan.rung]
        for key, result in healthy.items()
    }
    assert {key: found for key, found in returns.items() if found} == {}


def test_the_strict_healthy_set_has_no_error(results):
    strict = {
        key: result for key, (row, result) in readable(results).items() if row["healthy"] and row["ambiguous"] is None
    }
    assert strict
    alarms = {key: [i.name for i in r.incidents if str(i.severity) == "error"] for key, r in strict.items()}
    assert not any(alarms.values()), alarms


def test_no_rule_crashes_on_a_real_file(results):
    crashed = {
        key: i.because for key, (_, r) in readable(results).items() for i in r.incidents if i.name == "rule-crashed"
    }
    assert not crashed


def test_bad_files_end_with_code_2_and_one_sentence(results, capsys):
    for row in ROWS:
        if isinstance(results[row["id"]], str):
            assert main(["replay", str(CASES / row["file"])]) == 2
            printed = capsys.readouterr()
            assert printed.out == ""
            assert printed.err.count("\n") == 1, printed.err
            assert row["file"] in printed.err


def test_all_files_together_make_one_table(results, capsys):
    code = main(["replay", "--json", *(str(CASES / row["file"]) for row in ROWS)])
    printed = json.loads(capsys.readouterr().out)
    assert code == 2
    assert printed["v"] == 1
    assert len(printed["files"]) == len(ROWS)
    healthy = {Path(f["path"]).name: f["healthy"] for f in printed["files"] if "error" not in f}
    assert healthy == {Path(row["file"]).name: r.healthy for row, r in readable(results).values()}

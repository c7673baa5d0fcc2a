"""`heal drill`: every fault is healed, what the scorecard says is what the ledgers say, and a script of one's own can be drilled too.

Other seeds, unprotected runs of all faults and drills without what they prove: `tests/soak/test_every_drill.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.cli.main import main
from self_healing.core.errors import ConfigError
from self_healing.core.run_directory import DRILL, VARIABLE
from self_healing.drills.drill import drill
from self_healing.drills.outside import Permit, plant_as_asked
from self_healing.drills.scoring import Found, score
from self_healing.drills.stages import faults

pytestmark = pytest.mark.torch
SHORT = (
    "nan-loss",
    "weight-nan",
    "raising-record",
    "checkpoint-truncated",
    "oom-above-two-rows",
    "clock-jump",
    "rank-killed",
)
KEYS = [
    "fault", "passed", "detected", "delay_steps", "cause", "actions", "steps_lost", "seconds_lost", "eval_loss",
    "clean_eval_loss",
]  # fmt: skip


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drill")
    return folder, drill(folder, only=SHORT)


def lines(drilled):
    return {each.fault: each for each in drilled[1].scores}


def test_every_fault_is_healed_and_nothing_is_found_where_nothing_was(drilled):
    assert {each.fault: each.problems for each in drilled[1].scores} == dict.fromkeys(sorted(SHORT), ())
    assert drilled[1].false_alarms == 0
    assert drilled[1].is_passed


@pytest.mark.timeout(900)
def test_there_is_no_other_fault_that_is_not_healed(tmp_path):
    others = sorted(set(faults()) - set(SHORT))
    card = drill(tmp_path, only=others, unprotected=False)
    assert {each.fault: each.problems for each in card.scores} == dict.fromkeys(others, ())
    assert all(each.passed for each in card.scores), "none was left out"
    assert card.false_alarms == 0


def test_the_json_has_exactly_the_keys_that_are_documented(drilled):
    told = json.loads(json.dumps(drilled[1].to_json()))
    assert list(told) == ["v", "faults", "clean"]
    assert [list(each) for each in told["faults"]] == [KEYS] * len(SHORT)
    assert told["clean"] == {"false_alarms": 0}


def test_what_is_said_is_what_the_ledger_says(drilled):
    said = lines(drilled)
    assert (said["weight-nan"].cause, said["weight-nan"].delay_steps) == ("weights-not-finite", 0)
    assert 0 < said["weight-nan"].steps_lost < 20
    assert said["raising-record"].actions == ("quarantine_records",)
    assert "split_micro_batch" in said["oom-above-two-rows"].actions
    assert (said["clock-jump"].detected, said["clock-jump"].cause) == (False, None)


def test_the_same_does_harm_to_a_run_without_the_healer(drilled):
    said = lines(drilled)
    assert said["nan-loss"].unprotected == said["weight-nan"].unprotected == "NaN weights"
    assert said["raising-record"].unprotected.startswith("UnicodeDecodeError at ")
    assert said["checkpoint-truncated"].unprotected.startswith(("OSError at ", "RuntimeError at "))
    assert said["rank-killed"].unprotected == "all ranks die"


def test_ranks_that_are_started_again_are_one_run_and_its_crash_is_not_forgotten(drilled):
    """Their ledger once said that the second attempt continues nothing, though all went on at a state of the first."""
    folder = drilled[0] / "rank-killed"
    began = [
        json.loads(line)["body"]
        for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()
        if '"kind":"config"' in line
    ]
    assert [each.get("continues", True) for each in began] == [False, True]
    told = json.loads((folder / "postmortem.json").read_text())
    assert [each["attempt"] for each in told["attempts"]] == [1, 2]
    assert [each["name"] for each in told["incidents"]] == ["crashed"]


# -- the judgement -------------------------------------------------------------------------------------

WELL = {"steps": 60, "planned": 60, "eval_loss": 1.0, "is_finite": True, "raised": "", "began": [20]}
SEEN = {"detected": True, "step": 21, "causes": ("step-not-finite",), "actions": ("skip_step",)}
FAULTY = {
    "not detected": (WELL, {"detected": False, "step": None, "causes": ()}),
    "found as loss-spike": (WELL, {"causes": ("loss-spike",)}),
    "found after 9 steps": (WELL, {"step": 30}),
    "skip_step was not done": (WELL, {"actions": ("alert",)}),
    "not exactly 1.0": ({**WELL, "eval_loss": 1.001}, {}),
    "the evaluation loss is not finite": ({**WELL, "eval_loss": None}, {}),
    "the weights are not finite": ({**WELL, "is_finite": False}, {}),
    "KeyError at 31": ({**WELL, "steps": 31, "raised": "KeyError: x"}, {}),
    "dies: SIGKILL": ({"signal": 9}, {}),
    "the drill itself failed: NameError": ({"broken": "Traceback\nNameError"}, {}),
}


@pytest.mark.parametrize("said", FAULTY)
def test_a_drill_fails_for_each_thing_that_is_not_as_expected(said):
    ended, other = FAULTY[said]
    line = score("nan-loss", faults()["nan-loss"].expected, Found(**{**SEEN, **other}), ended, {"eval_loss": 1.0})
    assert line.passed is False
    assert any(said in problem for problem in line.problems)


def test_a_drill_is_passed_where_all_is_as_expected():
    assert score("nan-loss", faults()["nan-loss"].expected, Found(**SEEN), WELL, {"eval_loss": 1.0}).problems == ()


def test_steps_that_a_killed_process_could_not_write_down_are_lost_all_the_same():
    found = Found(**SEEN, steps_lost=1, goes_on_at=8)
    line = score("nan-loss", faults()["nan-loss"].expected, found, WELL, {"eval_loss": 1.0})
    assert line.steps_lost == 12


def test_something_found_where_nothing_is_amiss_is_a_failure():
    line = score("clock-jump", faults()["clock-jump"].expected, Found(**SEEN), WELL, {"eval_loss": 1.0})
    assert line.problems == ("nothing is amiss, and step-not-finite was found",)


# -- the command ---------------------------------------------------------------------------------------


def test_names_that_do_not_exist_are_refused_before_anything_starts(capsys):
    assert main(["drill", "--only", "nan-los"]) == 2
    assert "there is no such fault" in capsys.readouterr().err
    assert main(["drill", "--only", "rank-killed", "--", "python", "train.py"]) == 2
    assert "cannot come from outside" in capsys.readouterr().err


def test_all_faults_are_listed(capsys):
    assert main(["drill", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in faults())


def test_what_needs_a_package_that_is_missing_is_neither_passed_nor_failed(monkeypatch, tmp_path, capsys):
    import self_healing.drills.drill as module

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main(["drill", "--only", "reward-hangs", "--json", "--output", str(tmp_path)]) == 0
    (line,) = json.loads(capsys.readouterr().out)["faults"]
    assert (line["passed"], line["cause"]) == (None, "not run: needs trl, transformers, datasets")


# -- scripts of one's own ------------------------------------------------------------------------------

SCRIPT = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from self_healing import guard

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(80, 8)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loss_of = lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
with guard(model, optimizer, run_dir=FOLDER) as run:
    for batch in run.batches(loader):
        with run.step(batch) as s:
            s.backward(loss_of, batch)
"""


def script(folder: Path, run_dir: str) -> list[str]:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("FOLDER", run_dir))
    return [sys.executable, str(path)]


@pytest.mark.soak
def test_a_script_of_ones_own_meets_a_fault_from_outside(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = script(tmp_path, f'os.environ.get("{VARIABLE}", "out")')
    drills = tmp_path / "drills"
    assert main(["drill", "--only", "nan-loss,sigkill", "--json", "--output", str(drills), "--", *command]) == 0
    told = {each["fault"]: each for each in json.loads(capsys.readouterr().out)["faults"]}
    assert told["nan-loss"]["cause"] == "step-not-finite"
    assert "restart" in told["sigkill"]["actions"]
    assert not (tmp_path / "out").exists(), "the folder of the user's own runs is not touched"
    assert not (drills / "token").exists()


def test_a_script_that_would_write_elsewhere_is_not_drilled(tmp_path, capsys):
    command = script(tmp_path, repr(str(tmp_path / "precious")))
    assert main(["drill", "--only", "nan-loss", "--output", str(tmp_path / "drills"), "--", *command]) == 2
    assert VARIABLE in capsys.readouterr().err
    assert not (tmp_path / "precious").exists()


def test_a_variable_that_no_drill_has_set_ends_the_run_before_it_writes(tmp_path):
    permit = Permit.issue(tmp_path)
    environ = permit.variables(tmp_path / "run", "nan-loss", 3)
    trainer = type("T", (), {"args": type("A", (), {"output_dir": str(tmp_path / "run")})})
    plant_as_asked(trainer, environ | {DRILL: environ[DRILL].replace('"nan-loss"', "null")})
    permit.withdraw()
    for value in (environ[DRILL], "", "{}", "[]", '{"folder": "/", "token": "", "fault": null, "at_step": 0}'):
        with pytest.raises(ConfigError, match="not by a drill that is under way"):
            plant_as_asked(trainer, {DRILL: value})


def test_without_the_variable_nothing_of_the_drills_is_imported():
    code = (
        "import sys, self_healing.adapters.plain_torch; sys.exit(any('self_healing.drills' in m for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

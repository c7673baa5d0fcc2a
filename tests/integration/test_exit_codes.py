"""A training that is given up for good says so by its exit code; every other exception keeps its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from self_healing import SelfHealingTrainer, UnrecoverableError
from self_healing.core.heartbeat import read_heartbeat
from self_healing.drills.faults.nan_from_then_on import NanFromThenOn
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch

SCRIPT = """
import os, sys, torch
torch.set_num_threads(1)
from self_healing import HealingConfig, SelfHealingCallback, SelfHealingTrainer
from self_healing.drills.faults.nan_from_then_on import NanFromThenOn
from self_healing.drills.tiny_training import tiny_trainer
folder, how, around = sys.argv[1:]
trainer = tiny_trainer(folder, max_steps=30)
config = HealingConfig()

def fail(kind, text):
    def forward(module, args):
        if trainer.state.global_step == 13:
            raise kind(text)
    trainer.model.register_forward_pre_hook(forward)

if how == "nan":
    NanFromThenOn(at_step=13).plant(trainer)
elif how == "bug":
    fail(KeyError, "labels")
elif how == "host-memory":
    config = HealingConfig(max_recovery_attempts=1)
    fail(MemoryError, "")
elif how == "rehearsal":
    config = HealingConfig(dry_run_steps=1)
    trainer.train_dataset = [{**record, "labels": [-100] * 16} for record in trainer.train_dataset]
elif how == "observed":
    config = HealingConfig(mode="observe")
    fail(KeyError, "labels")

def train():
    if around == "callback":
        trainer.add_callback(SelfHealingCallback(config))
        trainer.train()
    else:
        SelfHealingTrainer(trainer, config).train()

if around == "hook":
    sys.excepthook = lambda kind, error, trace: print("shown by the program:", kind.__name__, file=sys.stderr)
if around == "caught":
    try:
        train()
    except Exception as error:
        print("caught", type(error).__name__)
    sys.exit(3)
elif around == "wrapped":
    try:
        train()
    except Exception as error:
        raise RuntimeError("the job has failed") from error
elif around == "other":
    try:
        train()
    except Exception:
        pass
    raise RuntimeError("something else")
else:
    train()
"""


def run(folder, how, around="plain"):
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), how, around],
        capture_output=True, text=True, env=environ, check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "last_line"),
    [
        ("nan", "self_healing.core.errors.UnrecoverableError: "),
        ("bug", "self-healing gave up: "),
        pytest.param("rehearsal", "self_healing.core.errors.UnrecoverableError: ", marks=pytest.mark.soak),
    ],
)
def test_what_is_given_up_for_good_ends_with_78_and_its_own_traceback(how, last_line, tmp_path):
    ended = run(tmp_path, how)
    assert ended.returncode == 78, ended.stderr
    assert "Traceback (most recent call last):" in ended.stderr
    assert any(line.startswith(last_line) for line in ended.stderr.splitlines()), ended.stderr
    if how == "bug":
        assert "KeyError: 'labels'" in ended.stderr
        assert "raise kind(text)" in ended.stderr or "in forward" in ended.stderr
    told = read_heartbeat(tmp_path)
    assert (told.ended, told.exit_code) == ("exception" if how == "bug" else "unrecoverable", 78)


@pytest.mark.soak
def test_a_callback_gives_up_with_the_same_code(tmp_path):
    ended = run(tmp_path, "nan", "callback")
    assert ended.returncode == 78, ended.stderr
    assert read_heartbeat(tmp_path).exit_code == 78


@pytest.mark.parametrize("how", ["observed", pytest.param("host-memory", marks=pytest.mark.soak)])
def test_an_exception_that_another_process_may_fare_better_with_keeps_its_own_code(how, tmp_path):
    """Nothing was decided about the one; the other asks for a new process, which this one cannot begin itself."""
    ended = run(tmp_path, how)
    assert ended.returncode == 1, ended.stderr
    assert ("KeyError: 'labels'" if how == "observed" else "MemoryError") in ended.stderr
    told = read_heartbeat(tmp_path)
    assert (told.ended, told.exit_code, told.heals) == ("exception", None, how != "observed")


@pytest.mark.parametrize(
    ("around", "code", "said"),
    [
        ("hook", 78, "shown by the program: UnrecoverableError"),
        pytest.param("wrapped", 78, "RuntimeError: the job has failed", marks=pytest.mark.soak),
        ("caught", 3, ""),
        pytest.param("other", 1, "RuntimeError: something else", marks=pytest.mark.soak),
    ],
)
def test_what_the_program_does_with_the_exception_counts(around, code, said, tmp_path):
    ended = run(tmp_path, "nan", around)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert "Error in sys.excepthook" not in ended.stderr


def test_a_program_that_goes_on_after_it_is_left_alone(tmp_path):
    before = sys.excepthook
    trainer = tiny_trainer(tmp_path, max_steps=30)
    NanFromThenOn(at_step=13).plant(trainer)
    try:
        with pytest.raises(UnrecoverableError):
            SelfHealingTrainer(trainer).train()
    finally:
        sys.excepthook = before
    assert read_heartbeat(tmp_path).exit_code == 78

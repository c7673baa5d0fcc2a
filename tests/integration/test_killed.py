"""A process that is killed says nothing; the next start writes its postmortem from all that is known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from self_healing import SelfHealingTrainer
from self_healing.adapters.ending.killed_attempt import listed_since, reached_at_least
from self_healing.adapters.ending.last_attempt import LastAttempt
from self_healing.drills.tiny_training import tiny_trainer

pytestmark = pytest.mark.torch

SCRIPT = """
import os, signal, sys, time
from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core import ledger
from self_healing.drills.faults.raising_record import RaisingRecord
from self_healing.drills.tiny_training import tiny_trainer
ledger.PAUSE_S = 3600.0  # metrics never reach the file
folder, saving, settings = sys.argv[1], eval(sys.argv[2]), eval(sys.argv[3])
trainer = tiny_trainer(folder, max_steps=30, **saving)
RaisingRecord(record=4).plant(trainer)  # in the first batch
def kill(*_):
    if trainer.state.global_step == 12:
        while "record-left-out" not in open(folder + "/healing/ledger.jsonl").read():
            time.sleep(0.01)  # for ever, where remarks wait for company
        os.kill(os.getpid(), signal.SIGKILL)
trainer.model.register_forward_hook(kill)
SelfHealingTrainer(trainer, HealingConfig(**settings)).train()
"""
SAVING = {"save_strategy": "steps", "save_steps": 4}


@pytest.mark.parametrize(
    ("saving", "settings", "reached"),
    [(SAVING, {"shared_memory": False}, 12), ({}, {"snapshot_every_steps": 5}, 10)],
    ids=["from disk", "from shared memory"],
)
def test_the_next_start_writes_the_postmortem_of_a_killed_run(saving, settings, reached, tmp_path):
    environ = {**os.environ, "SELF_HEALING_STRICT": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), repr(saving), repr(settings)]
    ended = subprocess.run(command, capture_output=True, env=environ, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (tmp_path / "postmortem.json").exists()
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0)
    assert reached_at_least(LastAttempt(1), args) == reached, "also where the ledger does not know"
    assert reached_at_least(LastAttempt(1, last_s=time.time() + 60), args) == 0, "what is older than that may be undone"
    told = []
    trainer = tiny_trainer(tmp_path, max_steps=30, **saving)
    trainer.model.register_forward_hook(
        lambda *_: told.append(json.loads((tmp_path / "postmortem.json").read_text())) if not told else None
    )
    SelfHealingTrainer(trainer).train()
    killed = told[0]
    assert (killed["exit_reason"], len(killed["attempts"])) == ("killed", 1)
    assert killed["last_step"] == killed["attempts"][0]["last_step"] == reached
    assert [each["step"] for each in killed["data_quarantined"]] == [0], "and not once more from the list"
    assert "record 4" in killed["data_quarantined"][0]["said"]
    assert f"its last step is {reached} at least" in killed["incomplete"][0]
    after = json.loads((tmp_path / "postmortem.json").read_text())
    assert after["exit_reason"] == "completed"
    assert [(each["first_step"], each["last_step"]) for each in after["attempts"]] == [(0, reached), (reached, 30)]


def test_a_checkpoint_and_a_list_tell_of_what_the_ledger_does_not(tmp_path):
    began = time.time()
    trainer = tiny_trainer(tmp_path, max_steps=8, **SAVING)
    trainer.train()
    args = SimpleNamespace(output_dir=str(tmp_path), process_index=0)
    assert reached_at_least(LastAttempt(1, last_step=3, last_s=began, run_began_s=began), args) == 8
    assert reached_at_least(LastAttempt(1, last_step=9, last_s=began), args) == 9
    later = time.time() + 60
    assert reached_at_least(LastAttempt(1, last_step=3, last_s=later), args) == 3, "perhaps undone since"

    listed = tmp_path / "healing" / "quarantine.jsonl"
    listed.parent.mkdir()
    record = {
        "v": 1, "index": 7, "hash": "a", "has_content": True, "dataset": "b", "where": "dataset", "exception": "E",
        "message": "odd", "replaced_by": 8,
    }  # fmt: skip
    listed.write_text(json.dumps(record) + "\n")
    (found,) = listed_since(LastAttempt(1, run_began_s=began), tmp_path)
    assert found.sentence() == "record 7 raised E in the dataset (odd); record 8 takes its place"
    assert listed_since(LastAttempt(1, run_began_s=later), tmp_path) == [], "another run's"

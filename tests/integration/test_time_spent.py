"""A guarded training says where its time went: in its metrics, in its ledger and in its postmortem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.goodput import Spending
from self_healing.drills.faults.nan_loss import NanLoss
from self_healing.drills.tiny_training import tiny_trainer

from .test_returning import raise_once_at

pytestmark = pytest.mark.torch


def told(folder):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line for line in lines if line["name"] == "goodput"]


def slow(trainer, seconds=0.01):
    trainer.model.register_forward_pre_hook(lambda module, _: time.sleep(seconds) if module.training else None)


def test_all_kinds_add_up_to_the_time_of_train(tmp_path):
    trainer = tiny_trainer(
        tmp_path, max_steps=40, eval_strategy="steps", eval_steps=20, save_strategy="steps", save_steps=20
    )
    slow(trainer)
    NanLoss(at_step=5).plant(trainer)
    raise_once_at(trainer, 29)
    began = time.perf_counter()
    metrics = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train().metrics
    wall_s = time.perf_counter() - began
    (line,) = told(tmp_path)
    seconds = line["body"]["seconds"]
    assert set(seconds) == set(map(str, Spending))
    assert sum(seconds.values()) <= wall_s
    # What follows is the end of the session, after the ledger has its last line: no more than a part of the rest.
    assert wall_s - sum(seconds.values()) < 0.2 * wall_s
    zero = {kind for kind, spent in seconds.items() if spent == 0}
    assert zero <= {"stalled"}
    assert seconds["productive"] >= 40 * 0.01
    assert seconds["replayed"] >= 9 * 0.01, "steps 21 to 29 were trained twice"
    assert seconds["made_up"] >= 0.01
    assert metrics["healing/goodput"] == pytest.approx(seconds["productive"] / sum(seconds.values()), abs=0.05)
    postmortem = json.loads((tmp_path / "postmortem.json").read_text())
    assert postmortem["goodput"]["seconds"] == seconds
    logged = [entry for entry in trainer.state.log_history if "healing/goodput" in entry]
    assert logged
    assert 0 < logged[-1]["healing/goodput"] < 1


def test_the_time_of_a_restart_from_a_checkpoint_is_restoring_and_what_it_undoes_is_replayed(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30, save_strategy="steps", save_steps=10)
    slow(trainer)
    raise_once_at(trainer, 27)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()
    (line,) = told(tmp_path)
    seconds = line["body"]["seconds"]
    assert seconds["replayed"] >= 7 * 0.01
    assert seconds["restoring"] > 0
    assert seconds["productive"] >= 30 * 0.01


def test_a_pause_before_something_is_tried_again_is_a_stall(tmp_path):
    class Fails(list):
        left = 2  # the first retry comes at once

        def __getitem__(self, index):
            if trainer.state.global_step == 5 and self.left:
                self.left -= 1
                raise ConnectionResetError(104, "Connection reset by peer")
            return super().__getitem__(index)

    trainer = tiny_trainer(tmp_path, max_steps=10)
    trainer.train_dataset = Fails(trainer.train_dataset)
    SelfHealingTrainer(trainer, HealingConfig(backoff_base_s=0.2)).train()
    assert told(tmp_path)[-1]["body"]["seconds"]["stalled"] >= 0.1


SCRIPT = """
import os, signal, sys, time, torch
torch.set_num_threads(1)
from self_healing import SelfHealingTrainer
from self_healing.adapters.run import time_spent
from self_healing.drills.tiny_training import tiny_trainer
trainer = tiny_trainer(sys.argv[1], max_steps=30, save_strategy="steps", save_steps=10)
def kill(*_):
    time.sleep(0.02)
    if sys.argv[2] == "killed" and trainer.state.global_step == 26:
        time.sleep(0.5)  # lines reach the file a moment after they are written
        os.kill(os.getpid(), signal.SIGKILL)
trainer.model.register_forward_hook(kill)
time_spent.EVERY_S = 0.02  # a minute is too long for a test
SelfHealingTrainer(trainer).train(resume_from_checkpoint="auto")
"""


def test_a_killed_process_has_told_of_itself_and_what_it_trained_in_vain_is_replayed(tmp_path):
    for how in ("killed", "whole"):
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path), how], capture_output=True, env=dict(os.environ), check=False
        )
    killed = [line["body"] for line in told(tmp_path) if line["attempt"] == 1]
    whole = [line["body"] for line in told(tmp_path) if line["attempt"] == 2]
    assert len(killed) > 10
    assert (killed[-1]["first_step"], whole[-1]["first_step"]) == (0, 20)
    postmortem = json.loads((tmp_path / "postmortem.json").read_text())["goodput"]
    assert postmortem["attempts"] == 2
    assert postmortem["seconds"]["replayed"] >= 4 * 0.02, "the steps after the checkpoint of step 20"
    both = sum(killed[-1]["seconds"].values()) + sum(whole[-1]["seconds"].values())
    assert sum(postmortem["seconds"].values()) == pytest.approx(both, abs=0.01)

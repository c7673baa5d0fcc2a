"""A damaged file of ours beside a checkpoint costs what it holds, not the checkpoint."""

from __future__ import annotations

import json

import pytest

from self_healing import SelfHealingTrainer
from self_healing.drills.faults.nan_loss import NanLoss
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import weights
from self_healing.report.postmortem import read_postmortem

pytestmark = pytest.mark.torch

SAVING = {"save_strategy": "steps", "save_steps": 4, "lr_scheduler_type": "constant"}


@pytest.mark.parametrize("damage", ["flipped", "garbage"])
def test_a_checkpoint_whose_healing_state_is_damaged_is_resumed_from_as_a_stock_one(damage, tmp_path):
    SelfHealingTrainer(tiny_trainer(tmp_path, max_steps=8, **SAVING)).train()
    path = tmp_path / "checkpoint-8" / "healing_state.json"
    if damage == "flipped":
        content = path.read_text()
        path.write_text(content.replace("0", "1", 1) if "0" in content else content[::-1])  # it can still be read
    else:
        path.write_bytes(bytes(range(256)))
    again = tiny_trainer(tmp_path, max_steps=12, **SAVING)
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    lines = [json.loads(line) for line in (tmp_path / "healing" / "ledger.jsonl").read_text().splitlines()]
    told = [line["body"]["text"] for line in lines if line["name"] == "resuming"]
    assert told[0].startswith("checkpoint-8 is resumed from (healing_state.json ")
    assert "passed over" not in told[0]
    assert told[1].endswith("counts begin anew, as after a stock resume")
    stock = tiny_trainer(tmp_path / "stock", max_steps=12, **SAVING)
    stock.train()
    assert (weights(again) == weights(stock)).all()


def test_what_was_healed_leaves_nothing_to_advise_however_short_the_run(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=10)
    NanLoss(at_step=5).plant(trainer)
    SelfHealingTrainer(trainer).train()
    told = read_postmortem(tmp_path / "postmortem.json")
    assert told.incidents, "it was seen"
    assert told.advice == []

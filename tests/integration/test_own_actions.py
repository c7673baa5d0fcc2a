"""A researcher's own action in a real training, by `on_instability`, without an edit of this package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.action import Action, Done
from self_healing.core.errors import UnrecoverableError
from self_healing.core.failure import Effect
from self_healing.core.ledger import read_ledger
from self_healing.drills.faults.nan_loss import NanLoss
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import updates

pytestmark = pytest.mark.torch
ONCE = {"gradient_accumulation_steps": 1, "max_steps": 12}
heard: list[str] = []


@dataclass(frozen=True, kw_only=True)
class WriteToTheLabBook(Action):
    """Note what happened."""

    effect: ClassVar[Effect] = Effect.NOTHING
    text: str

    def apply(self, run):
        heard.append(self.text)
        return Done(text="noted")


def note_instead(incident, plan, run):
    return plan.instead(WriteToTheLabBook(text=f"{incident.name} at step {incident.step}"))


def test_a_users_action_is_carried_out_in_the_place_of_the_planned_one(tmp_path):
    trainer = tiny_trainer(tmp_path, **ONCE)
    NanLoss(at_step=5).plant(trainer)
    guarded = SelfHealingTrainer(trainer, HealingConfig(nan_action="raise"))
    guarded.on_instability(note_instead, "nan_loss")
    heard.clear()
    guarded.train()
    assert updates(trainer) == 12  # `raise` alone would have ended it
    assert heard == ["loss-not-finite at step 6"]
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    assert [entry.name for entry in entries if entry.name.startswith("hook-")] == ["hook-replaced"]
    outcome = next(entry for entry in entries if entry.kind == "outcome")
    assert [result["action"] for result in outcome.body["results"]] == ["write-to-the-lab-book"]


def test_a_hook_for_another_kind_of_trouble_is_not_asked(tmp_path):
    trainer = tiny_trainer(tmp_path, **ONCE)
    NanLoss(at_step=5).plant(trainer)
    guarded = SelfHealingTrainer(trainer, HealingConfig(nan_action="raise"))
    guarded.on_instability(note_instead, "oom")
    heard.clear()
    with pytest.raises(UnrecoverableError):
        guarded.train()
    assert heard == []

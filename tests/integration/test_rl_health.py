"""What a TRL trainer logs of rewards and preferences reaches the rules of a guarded run."""

from __future__ import annotations

import json

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_model

from .rehearsed import of_trl

pytestmark = pytest.mark.torch


def nothing(completions, **_):
    """A reward function that looks for what is never there."""
    return [0.0 for _ in completions]


def ledger_of(folder):
    return [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]


def test_a_reward_that_stays_at_zero_is_told_while_the_run_goes_on(tmp_path):
    trainer = of_trl(
        tmp_path, "GRPO", ["prompt"], {"reward_funcs": nothing}, num_generations=2, max_completion_length=4
    )
    trainer.args.max_steps = 24
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 24
    lines = ledger_of(tmp_path)
    (opened,) = [
        x for x in lines if x["kind"] == "incident" and x["name"] == "reward-flat" and x["body"]["event"] == "opened"
    ]
    assert opened["step"] == 20
    assert opened["body"]["class"] == "grpo_zero_signal"
    diagnosed = next(x for x in lines if x["kind"] == "diagnosis" and x["name"] == "reward-flat")
    likely = {hypothesis["name"] for hypothesis in diagnosed["body"]["hypotheses"][:2]}
    assert likely == {"reward-function-broken", "completion-limit-too-short"}  # four letters are too few for an answer
    (plan,) = [x for x in lines if x["kind"] == "plan" and x["name"] == "reward-flat"]
    (alert,) = plan["body"]["actions"]
    assert alert["text"].startswith("the reward was exactly 0")
    assert "log_completions" in alert["text"]
    assert not any(x["kind"] == "incident" and x["name"] in ("loss-exactly-zero", "gradient-vanishing") for x in lines)


def test_a_preference_run_that_learns_nothing_is_at_chance(tmp_path):
    trainer = of_trl(
        tmp_path, "DPO", ["prompt", "chosen", "rejected"], {"ref_model": tiny_model(dropout=0.1)}, learning_rate=1e-9
    )
    trainer.args.max_steps = 44
    config = HealingConfig(rules={"dpo-at-chance": {"after_step": 30}})
    SelfHealingTrainer(trainer, config).train()
    lines = ledger_of(tmp_path)
    (opened,) = [
        x for x in lines if x["kind"] == "incident" and x["name"] == "dpo-at-chance" and x["body"]["event"] == "opened"
    ]
    assert opened["step"] == 32  # as many margins as are averaged
    assert not any(x["kind"] == "incident" and x["name"] == "loss-plateau" for x in lines)

"""What a TRL trainer logs of rewards and preferences reaches the rules of a guarded run."""

from __future__ import annotations

import json

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.drills.tiny_training import tiny_model
from self_healing.drills.tiny_trl import of_trl, word_tokenizer

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


def make_kto(folder, labels):
    import trl
    from datasets import Dataset

    data = Dataset.from_dict(
        {
            "prompt": ["a b"] * len(labels),
            "completion": [f" {'cdefgh'[i % 6]} e" for i in range(len(labels))],
            "label": labels,
        }
    )
    args = trl.KTOConfig(
        output_dir=str(folder), max_steps=2, logging_steps=1, per_device_train_batch_size=4, report_to="none", use_cpu=True,
        bf16=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return trl.KTOTrainer(
        model=tiny_model(), ref_model=tiny_model(), args=args, train_dataset=data, processing_class=word_tokenizer()
    )


@pytest.mark.parametrize(("labels", "told"), [([True] * 20 + [False] * 4, True), ([True, False] * 12, False)])
def test_judgements_of_a_kto_run_are_counted_before_it_begins(labels, told, tmp_path):
    trainer = make_kto(tmp_path, labels)
    SelfHealingTrainer(trainer).train()
    opened = [x for x in ledger_of(tmp_path) if x["kind"] == "incident" and x["name"] == "kto-imbalance"]
    assert bool(opened) is told
    if told:
        assert opened[0]["body"]["because"].startswith("20 desirable examples of weight 1 stand against 4 undesirable")


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

"""Sick RL and preference runs are acted on: the pairs are read, then one thing is changed, and kept only if it helps."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from self_healing import HealingConfig
from self_healing.actions.raise_kl_penalty import RaiseKlPenalty
from self_healing.adapters.run.abilities import TrainerAbilities
from self_healing.adapters.step.learning_rate import LearningRateScale
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.errors import ActionFailed
from self_healing.drills.tiny_training import tiny_model

from .rehearsed import of_trl

pytestmark = pytest.mark.torch

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    """The runs that the bench measures over several seeds."""
    sys.path.insert(0, str(BENCH))
    try:
        import rl_acting
    finally:
        sys.path.remove(str(BENCH))
    return rl_acting


def ledger_of(folder):
    return [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]


def done_in(folder):
    """Return what was done that changes the recipe or the place in the run: the rule, the rung and what it said."""
    outcomes = [x for x in ledger_of(folder) if x["kind"] == "outcome"]
    return [(x["name"], x["body"]["rung"], [r["text"] for r in x["body"]["results"]]) for x in outcomes
            if x["body"]["plan"]["effect"] == "recipe"]  # fmt: skip


def rewards(trainer, last=30):
    values = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    return sum(values[-last:]) / last


def test_a_preference_run_at_chance_gets_a_higher_rate_once_its_pairs_are_found_sound(bench, tmp_path):
    trainer = bench.preferred("DPO", 1, learning_rate=3e-6, lr_scheduler_type="constant", max_steps=210)(str(tmp_path))
    SelfHealingTrainer(trainer, HealingConfig(rules={"dpo-at-chance": {"after_step": 40}})).train()
    lines = ledger_of(tmp_path)
    (read,) = [x["body"]["facts"] for x in lines if x["name"] == "facts" and "pairs_alike" in x["body"]["facts"]]
    assert read["pairs_read"] == 512
    assert read["pairs_alike"] == 0.0
    ((rule, rung, said),) = done_in(tmp_path)
    assert (rule, rung) == ("dpo-at-chance", "try-learning-rate")
    assert said == ["learning rate is now 6e-06, times 2, on trial"]
    verdicts = [x["name"] for x in lines if x["kind"] == "verdict" and x["body"]["rung"] == rung]
    assert verdicts == ["recovered"]
    margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert sum(margins[-20:]) / 20 > 0.02


def test_pairs_without_a_difference_are_named_and_the_rate_stays(tmp_path):
    trainer = of_trl(
        tmp_path, "DPO", ["prompt", "chosen", "rejected"], {"ref_model": tiny_model(dropout=0.1)}, learning_rate=1e-9
    )
    alike = [row["chosen_ids"] if i % 2 else row["rejected_ids"] for i, row in enumerate(trainer.train_dataset)]
    trainer.train_dataset = trainer.train_dataset.remove_columns("rejected_ids").add_column("rejected_ids", alike)
    trainer.args.max_steps = 44
    SelfHealingTrainer(trainer, HealingConfig(rules={"dpo-at-chance": {"after_step": 30}})).train()
    told = [x["body"]["actions"][0]["text"] for x in ledger_of(tmp_path) if x["kind"] == "plan"]
    assert any("50% of the pairs are alike" in text for text in told)
    assert done_in(tmp_path) == []


def test_a_policy_that_leaves_its_reference_is_brought_back(bench, tmp_path):
    trainer = bench.kl_runaway(1, 100)(str(tmp_path))
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 100
    rule, rung, _ = done_in(tmp_path)[0]
    assert (rule, rung) == ("kl-runaway", "roll-back+rewarm-learning-rate")
    returned = next(x for x in ledger_of(tmp_path) if (x["kind"], x["name"]) == ("signal", "returned"))["step"]
    assert 0 < returned < 60  # before the rise, not only before the limit
    assert rewards(trainer) > 0.6  # left alone it writes nothing of worth from step 75 on
    assert trainer.beta == 1e-3


@pytest.mark.soak
def test_a_policy_that_stops_exploring_is_brought_back(bench, tmp_path):
    trainer = bench.entropy_collapse(1, 140)(str(tmp_path))
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 140
    rule, rung, _ = done_in(tmp_path)[0]
    assert (rule, rung) == ("entropy-collapse", "roll-back+rewarm-learning-rate")
    assert rewards(trainer) > 0.5


def test_the_penalty_is_raised_where_it_is_read_live_and_put_back(tmp_path):
    def length(completions, **_):
        return [float(len(text)) for text in completions]

    def able(kind, **arguments):
        names = {"reward_funcs": length} if kind != "DPO" else {"ref_model": tiny_model(dropout=0.1)}
        columns = ["prompt"] if kind != "DPO" else ["prompt", "chosen", "rejected"]
        if kind != "DPO":
            arguments |= {"num_generations": 2, "max_completion_length": 4}
        trainer = of_trl(tmp_path / kind, kind, columns, names, **arguments)
        return trainer, TrainerAbilities(trainer, LearningRateScale(), lambda: "")

    trainer, run = able("GRPO")
    assert trainer.beta == 0.0
    with pytest.raises(ActionFailed, match="no reference"):
        RaiseKlPenalty().apply(run)
    trainer.beta = 0.02  # as where a reference was loaded
    RaiseKlPenalty().apply(run)
    RaiseKlPenalty().apply(run)
    assert trainer.beta == 0.32
    RaiseKlPenalty().undo().apply(run)
    assert trainer.beta == 0.08
    run.put_back()
    assert trainer.beta == 0.02
    _, run = able("DPO")
    with pytest.raises(ActionFailed, match="does not read"):
        RaiseKlPenalty().apply(run)

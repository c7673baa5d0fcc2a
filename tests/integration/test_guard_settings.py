"""The settings as documented, acting on a real Trainer; and the ways a trainer is used in a notebook or a search."""

from __future__ import annotations

import json
import math
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.transformers import SelfHealingTrainer, healing
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault, once_before_forward
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.drills.tiny_trl import word_tokenizer
from self_healing.drills.trained import same
from self_healing.drills.trained import weights as flat
from self_healing.report.postmortem import postmortem_path, read_postmortem

from .rehearsed import make_with_model_init

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
AT = 15


def guarded(folder, fault, config=None, *, at_step=AT, **arguments):
    """Train with a fault; return the trainer, and the exception it ended with, if any."""
    trainer = tiny_trainer(folder, **{"max_steps": 40, **arguments})
    FAULTS[fault](at_step=at_step).plant(trainer)
    try:
        SelfHealingTrainer(trainer, HealingConfig(**(config or {}))).train()
    except UnrecoverableError as error:
        return trainer, error
    return trainer, None


def plans(folder):
    entries = read_ledger(folder / "healing" / "ledger.jsonl").entries
    return [(e.step, e.body["rung"]) for e in entries if e.kind == "plan" and e.name != "throughput-drop"]


QUICK_START = """
from self_healing import SelfHealingTrainer, HealingConfig
from trl import SFTTrainer, SFTConfig

# Your normal training setup
trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir="./output",
        learning_rate=2e-5,
        per_device_train_batch_size=4,
        **on_a_cpu,
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
)

# Wrap with self-healing
sh = SelfHealingTrainer(
    trainer,
    HealingConfig(
        max_recovery_attempts=5,
        zclip_enabled=True,
    ),
)

# Optional: dry-run to catch config errors before full training
sh.dry_run(num_steps=2)

# Train with full autonomy
result = sh.train()
"""


def test_the_quick_start_works_as_printed(tmp_path, monkeypatch):
    from datasets import Dataset

    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    texts = [" ".join(draw.choices("abcdefgh", k=5)) for _ in range(24)]
    names = {"model": tiny_model(), "dataset": Dataset.from_dict({"text": texts}), "tokenizer": word_tokenizer()}
    names["on_a_cpu"] = {
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
    }  # SFTConfig's default is bf16, which needs a GPU
    exec(QUICK_START, names)  # it is the printed text that is tried
    assert names["result"].global_step == 18
    assert (tmp_path / "output" / "healing" / "ledger.jsonl").exists()


@pytest.mark.parametrize(("patience", "first"), [(1, "tighten-clipping+rewarm-learning-rate"), (3, "alert")])
def test_patience_is_how_many_in_a_row_start_the_ladder(patience, first, tmp_path):
    _, error = guarded(tmp_path, "nan-loss", {"nan_patience": patience})
    assert error is None
    assert plans(tmp_path) == [(AT + 1, first)]


@pytest.mark.parametrize("skips", [3, 6])
def test_so_many_skips_in_a_row_stop_the_run_and_keep_the_weights(skips, tmp_path):
    trainer, error = guarded(
        tmp_path, "nan-from-then-on", {"max_consecutive_skips": skips, "max_recovery_attempts": 20}
    )
    assert isinstance(error, UnrecoverableError)
    # Three are answered by a return, after which others are counted; in the end the furthest sound weights are kept.
    assert trainer.state.global_step == (AT + skips if skips == 3 else 16)
    assert math.isfinite(flat(trainer).sum())


def test_raise_stops_at_the_first_one(tmp_path):
    trainer, error = guarded(tmp_path, "nan-loss", {"nan_action": "raise"})
    assert "loss is nan" in str(error)
    assert trainer.state.global_step == AT + 1
    assert math.isfinite(flat(trainer).sum())


@pytest.mark.parametrize("max_effect", ["nothing", "time"])
def test_below_recipe_nothing_is_clipped_beyond_what_the_user_asked_for(max_effect, tmp_path):
    how = {"at_step": 30, "max_grad_norm": 2000.0}  # by then an outlier is known from an ordinary norm
    stock, _ = guarded(tmp_path / "stock", "poisoned-batch", {"mode": "off"}, **how)
    ours, _ = guarded(tmp_path / "ours", "poisoned-batch", {"max_effect": max_effect}, **how)
    assert same(ours, stock)
    clipped, _ = guarded(tmp_path / "clipped", "poisoned-batch", **how)
    assert not same(clipped, stock), "which would have happened with the default"


def test_below_recipe_a_transient_is_still_made_up_since_that_changes_nothing(tmp_path):
    clean = tiny_trainer(tmp_path / "clean", max_steps=40)
    clean.train()
    ours, _ = guarded(tmp_path / "ours", "nan-loss", {"max_effect": "nothing"})
    assert same(ours, clean)


def test_warn_lets_the_step_through(tmp_path):
    trainer, error = guarded(tmp_path, "nan-loss", {"nan_action": "warn"})
    assert error is None
    assert math.isnan(flat(trainer).sum()), "as the user has asked for"


def test_warn_is_about_what_is_not_finite_alone_so_that_weights_that_are_finite_and_wrong_are_put_back(tmp_path):
    def harm(model):
        model.model.layers[0].self_attn.q_proj.weight.data.mul_(-30)

    trainer = tiny_trainer(tmp_path, max_steps=40)
    once_before_forward(trainer, AT, harm)
    SelfHealingTrainer(trainer, HealingConfig(nan_action="warn", snapshot_every_steps=10)).train()
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    assert "unexplained-state" in [entry.name for entry in entries if entry.kind == "incident"]
    clean = tiny_trainer(tmp_path / "clean", max_steps=40)
    clean.train()
    assert same(trainer, clean)


def test_without_any_recovery_the_steps_that_are_given_up_for_a_sound_state_count_as_lost(tmp_path):
    def harm(model):
        model.model.layers[0].self_attn.q_proj.weight.data.mul_(-30)

    trainer = tiny_trainer(tmp_path, max_steps=40)
    once_before_forward(trainer, AT, harm)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(max_recovery_attempts=0, snapshot_every_steps=10)).train()
    told = read_postmortem(postmortem_path(tmp_path))
    (stopped,) = told.recovery_actions
    seen_at = told.incidents[0]["step"]
    assert (trainer.state.global_step, told.last_step) == (10, 10)
    assert told.steps_lost == stopped["steps_lost"] == seen_at - 10 > 0
    assert "the weights are those of step 10" in stopped["said"]


def test_a_return_for_which_no_checkpoint_is_there_says_where_it_looked(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40, save_strategy="steps", save_steps=10)
    once_before_forward(trainer, AT, lambda model: _spoil_after_deleting(model, tmp_path))
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0.0)).train()
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    said = [result["text"] for e in entries if e.kind == "outcome" for result in e.body["results"]]
    assert any(f"none is in {tmp_path}" in text for text in said), said


def _spoil_after_deleting(model, folder):
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    model.model.norm.weight.data.fill_(math.nan)


def test_rollback_returns_at_the_first_one(tmp_path):
    _, error = guarded(tmp_path, "nan-loss", {"nan_action": "rollback"}, save_strategy="steps", save_steps=10)
    assert plans(tmp_path)[0][1].startswith("roll-back")
    assert error is None


@pytest.mark.parametrize("max_effect", ["nothing", "time"])
def test_below_recipe_no_other_data_take_the_place_of_a_bad_batch(max_effect, tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40)
    FAULTS["nan-record"](at_step=AT).plant(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(max_effect=max_effect)).train()
    assert output.metrics["healing/replaced_steps"] == 0
    assert output.metrics["healing/skipped_steps"] >= 1
    assert math.isfinite(flat(trainer).sum())


def applied_norms(folder, config):
    """Train with plain SGD, whose every update is the rate times the gradient as it was applied; return its norms."""
    from transformers import TrainerCallback

    places, rate = [], 0.5
    trainer = tiny_trainer(folder, max_steps=45, optim="sgd", learning_rate=rate, lr_scheduler_type="constant",
                           max_grad_norm=0.0)  # fmt: skip

    class Keep(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            places.append(flat(trainer))

    trainer.add_callback(Keep())
    FAULTS["poisoned-batch"](at_step=40, factor=30.0).plant(trainer)
    SelfHealingTrainer(trainer, HealingConfig(**config)).train()
    assert math.isfinite(flat(trainer).sum())
    return [float((after - before).norm()) / rate for before, after in pairwise(places)]


def test_zclip_and_adagc_clip_where_they_are_asked_to(tmp_path):
    off = applied_norms(tmp_path / "off", {"zclip_enabled": False})
    always = applied_norms(tmp_path / "always", {"zclip_mode": "always"})
    adagc = applied_norms(tmp_path / "adagc", {"adagc_enabled": True, "zclip_enabled": False})
    assert off[40] > 10, "the batch is poisoned"
    assert max(off[:40]) > 1.05, "and ordinary ones are above 1 as well"
    for clipped in (always, adagc):
        assert max(clipped) < 1.01, "both begin with a limit of 1, and keep to what they have seen"


def test_a_model_made_anew_for_each_training_is_guarded_each_time(tmp_path):
    """As `hyperparameter_search` does: one trainer, `model_init`, and `train()` once for each trial."""
    stock, ours = make_with_model_init(tmp_path / "stock"), make_with_model_init(tmp_path / "ours")
    for trainer in (stock, ours):
        trainer.remove_callback(trainer.callback_handler.callbacks[-1])
    with healing(ours):
        for round_ in (1, 2):
            stock.train()
            before = ours.model
            ours.train()
            assert ours.model is not before, round_
            assert same(ours, stock)
    lines = (tmp_path / "ours/healing/ledger.jsonl").read_text().splitlines()
    assert {json.loads(line)["attempt"] for line in lines} == {1, 2}


CELLS = {
    "everything": "trainer = make()\nplant(trainer)\nsh = SelfHealingTrainer(trainer)\nsh.train()",
    "the wrapping": "trainer = globals().get('trainer') or make()\nsh = SelfHealingTrainer(trainer)\nsh.train()",
    "wrapped again": "trainer = SelfHealingTrainer(globals().get('trainer') or make())\ntrainer.train()",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_notebook_cell_can_be_run_twice(cell, tmp_path):
    stock = tiny_trainer(tmp_path / "stock", max_steps=6)
    for _ in range(1 if cell == "everything" else 2):
        stock.train()
    names = {
        "make": lambda: tiny_trainer(tmp_path / "ours", max_steps=6),
        "plant": FAULTS["nan-loss"](at_step=3).plant,
        "SelfHealingTrainer": SelfHealingTrainer,
    }
    for _ in range(2):
        exec(CELLS[cell], names)  # a notebook does nothing else
    assert same(names["trainer"], stock)
    entries = read_ledger(tmp_path / "ours/healing/ledger.jsonl").entries
    assert {entry.attempt for entry in entries} == {1, 2}


def nan_weight(trainer):
    """Turn one weight NaN in the forward pass of one step, once."""
    done = []

    def spoil(module, args):
        if trainer.state.global_step == AT and not done:
            done.append(True)
            trainer.model.model.layers[1].self_attn.v_proj.weight.data[0, 0] = math.nan

    trainer.model.register_forward_pre_hook(spoil)


@pytest.mark.parametrize("save_steps", [10, 4])
def test_a_weight_turned_nan_leads_back_to_a_checkpoint_from_before(save_steps, tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40, save_strategy="steps", save_steps=save_steps)
    nan_weight(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_memory_fraction=0)).train()
    assert output.global_step == 40
    assert math.isfinite(flat(trainer).sum())
    updates = next(iter(trainer.optimizer.state.values()))["step"]
    assert int(updates) == 40, "every update was applied, some of them twice"
    (returned,) = [e for e in read_ledger(tmp_path / "healing" / "ledger.jsonl").entries if e.name == "returned"]
    assert Path(returned.body["key"]).name == f"checkpoint-{returned.step}"
    assert returned.step <= AT, "the checkpoint is from before the trouble"
    assert plans(tmp_path)[0][0] == AT + 1, "and not after some more steps of NaN"


@pytest.mark.parametrize(("max_grad_norm", "is_told"), [(0.0, True), (0.05, False)])
def test_an_outlier_that_we_clip_is_told_and_one_that_the_users_limit_clips_is_not(max_grad_norm, is_told, tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=40, max_grad_norm=max_grad_norm)
    FAULTS["poisoned-batch"](at_step=30).plant(trainer)
    SelfHealingTrainer(trainer).train()
    told = json.loads((tmp_path / "postmortem.json").read_text())["recovery_actions"]
    clipped = [action for action in told if action["incident"] == "gradient-outlier"]
    assert [action["actions"] for action in clipped] == [["reclip"]] * is_told
    if is_told:
        assert clipped[0]["step"] == 30
        assert "clipped to" in clipped[0]["said"]


def test_a_run_that_is_given_up_says_how_often_it_was_seen_and_which_budget_is_spent(tmp_path):
    """What a rule counts begins anew after each return; whoever reads the message is to know of all of them."""
    _, error = guarded(tmp_path, "nan-from-then-on", {"max_recovery_attempts": 2}, at_step=0)
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    seen = sum(
        entry.name == "metrics" and not math.isfinite(entry.body["values"].get("loss", 0.0)) for entry in entries
    )
    assert seen > 3
    assert f"seen {seen} times in all; budget spent: 2 recoveries from nan_loss" in str(error)
    assert "the limit is 2 (max_recovery_attempts = 2)" in str(error)
    told = json.loads((tmp_path / "postmortem.json").read_text())
    assert f"seen {seen} times in all" in told["exception"]["message"]


def test_with_the_ceiling_nothing_no_micro_batch_is_cut(tmp_path):
    import torch

    with pytest.raises(torch.OutOfMemoryError, match="out of memory") as caught:
        guarded(tmp_path, "oom-above-two-rows", {"max_effect": "nothing"})
    assert "max_effect is nothing" in "\n".join(caught.value.__notes__)


def test_with_oom_action_retry_the_same_is_tried_again_but_never_in_pieces(tmp_path):
    once, _ = guarded(tmp_path / "once", "oom-once-in-forward", {"oom_action": "retry"})
    stock = tiny_trainer(tmp_path / "stock", max_steps=40)
    stock.train()
    assert same(once, stock)
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        guarded(tmp_path / "rows", "oom-above-two-rows", {"oom_action": "retry"})
    assert "oom_action is retry" in "\n".join(caught.value.__notes__)


def test_with_oom_action_raise_the_run_ends_at_the_first_shortage_with_a_postmortem(tmp_path):
    with pytest.raises(RuntimeError, match="out of memory"):
        guarded(tmp_path, "oom-once-in-forward", {"oom_action": "raise"})
    assert (tmp_path / "postmortem.json").exists()
    assert [rung for _, rung in plans(tmp_path)] == ["stop-run"]

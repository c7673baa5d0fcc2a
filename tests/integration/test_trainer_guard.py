"""A guarded Trainer: neutral when healthy, exact when a fault was transient, honest when it cannot help."""

from __future__ import annotations

import copy
import json
import math

import pytest

from self_healing import HealingConfig, UnrecoverableError
from self_healing.adapters.transformers import SelfHealingTrainer, healing
from self_healing.core.discover import discover_classes
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.drills.trained import losses, same, weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)
VARIANTS = {
    "default": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "not-fused": {"optim": "adamw_torch"},
    "unclipped": {"max_grad_norm": 0.0},
    "log-each-step": {"logging_steps": 1},
    "one-epoch": {"max_steps": -1, "num_train_epochs": 1},
}


def eval_loss(trainer):
    return trainer.evaluate()["eval_loss"]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs without any fault, trained once each."""
    done = {}

    def get(variant, **more):
        key = (variant, *sorted(more.items()))
        if key not in done:
            done[key] = tiny_trainer(tmp_path_factory.mktemp("clean"), **VARIANTS[variant], **more)
            done[key].train()
        return done[key]

    return get


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_healthy_run_is_bit_identical_with_the_healer_on(variant, clean, tmp_path):
    trainer = tiny_trainer(tmp_path, **VARIANTS[variant])
    SelfHealingTrainer(trainer).train()
    assert same(trainer, clean(variant))
    assert losses(trainer) == losses(clean(variant))
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    # A busy machine really does slow steps of milliseconds down, and that is all that may be remarked.
    assert [e for e in entries if e.kind in ("incident", "plan") and e.name != "throughput-drop"] == []


def test_dropout_and_two_hundred_steps_are_neutral_too(tmp_path):
    made = []
    for folder, guard in (("a", False), ("b", True)):
        trainer = tiny_trainer(tmp_path / folder, model=tiny_model(dropout=0.1), max_steps=200)
        (SelfHealingTrainer(trainer) if guard else trainer).train()
        made.append(trainer)
    assert same(*made)
    assert losses(made[0]) == losses(made[1])


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_the_quiet_modes_leave_the_loop_stock(mode, tmp_path):
    stock = tiny_trainer(tmp_path / "stock")
    FAULTS["nan-loss"]().plant(stock)
    stock.train()
    trainer = tiny_trainer(tmp_path / mode)
    FAULTS["nan-loss"]().plant(trainer)
    SelfHealingTrainer(trainer, HealingConfig(mode=mode)).train()
    assert math.isnan(weights(trainer).sum()) is math.isnan(weights(stock).sum()) is True
    kinds = {e.kind for e in read_ledger(tmp_path / mode / "healing" / "ledger.jsonl").entries}
    assert "incident" in kinds
    assert ("plan" in kinds) is (mode == "advise")


def test_everything_replaced_is_the_original_again(tmp_path):
    def replaced(trainer):
        return {
            name: vars(owner).get(name)
            for owner in (trainer, trainer.accelerator, trainer.args)
            for name in ("training_step", "get_batch_samples", "_prepare_inputs", "clip_grad_norm_", "train")
        } | {"filter": trainer.args.logging_nan_inf_filter, "callbacks": len(trainer.callback_handler.callbacks)}

    trainer = tiny_trainer(tmp_path)
    before = replaced(trainer)
    SelfHealingTrainer(trainer).train()
    assert replaced(trainer) == before
    trainer = tiny_trainer(tmp_path)
    before = replaced(trainer)
    trainer.model.register_forward_hook(lambda *a: (_ for _ in ()).throw(KeyError("mine")))
    with pytest.raises(KeyError, match="mine") as caught:
        SelfHealingTrainer(trainer).train()
    assert any("self-healing gave up" in note for note in caught.value.__notes__)
    assert replaced(trainer) == before


# What does not touch a step is tried with the default loop alone.
TRANSIENT = [
    (name, variant)
    for name, fault in FAULTS.items()
    for variant in (VARIANTS if fault.steps_to_make_up else ["default"])
    if fault.is_transient and not fault.needs_rollback and fault.is_for_trainers
]


@pytest.mark.parametrize(("fault", "variant"), TRANSIENT)
def test_a_transient_fault_leaves_no_trace_in_the_weights(fault, variant, clean, tmp_path):
    planted = FAULTS[fault]
    trainer = tiny_trainer(tmp_path, **VARIANTS[variant], **planted.needs)
    planted().plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    without = clean(variant, **planted.needs)
    assert same(trainer, without)
    assert losses(trainer) == losses(without)
    assert output.metrics["healing/made_up_steps"] == planted.steps_to_make_up
    assert trainer.state.global_step == without.state.global_step


@pytest.mark.parametrize("fault", ["poisoned-batch", "nan-record"])
@pytest.mark.parametrize("variant", ["default", "accumulation", "unclipped", "one-epoch"])
def test_a_lasting_fault_costs_at_most_one_percent(fault, variant, clean, tmp_path):
    trainer = tiny_trainer(tmp_path, **VARIANTS[variant])
    FAULTS[fault]().plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == clean(variant).state.global_step
    assert output.metrics["healing/skipped_steps"] == 0, "as many updates as planned"
    assert eval_loss(trainer) <= 1.01 * eval_loss(clean(variant))


def test_a_run_that_only_makes_nan_is_stopped_and_keeps_its_last_good_weights(tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS["nan-from-then-on"]().plant(trainer)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step < 40, "within the budget"
    assert math.isfinite(weights(trainer).sum())
    stock = tiny_trainer(tmp_path / "stock")
    FAULTS["nan-from-then-on"]().plant(stock)
    stock.train()
    assert math.isnan(weights(stock).sum()), "what happens without us"


def test_the_wrapper_forwards_everything_else(tmp_path):
    trainer = tiny_trainer(tmp_path)
    guarded = SelfHealingTrainer(trainer)
    guarded.label = "mine"
    assert trainer.label == "mine"
    assert guarded.model is trainer.model
    assert guarded.trainer is trainer
    assert "eval_loss" in guarded.evaluate()
    with pytest.raises(AttributeError):
        _ = guarded.there_is_no_such_thing


def test_the_context_manager_does_the_same_and_puts_train_back(clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    FAULTS["nan-loss"]().plant(trainer)
    with healing(trainer):
        trainer.train()
    assert "train" not in vars(trainer)
    assert same(trainer, clean("default"))


def test_a_second_train_two_trainers_and_a_copy_work(tmp_path):
    first, second = tiny_trainer(tmp_path / "1", max_steps=5), tiny_trainer(tmp_path / "2", max_steps=5)
    guarded = SelfHealingTrainer(first)
    guarded.train()
    SelfHealingTrainer(second).train()
    assert same(first, second)
    guarded.train()
    copied = copy.deepcopy(guarded)
    assert copied.trainer is not first
    copied.args.output_dir = str(tmp_path / "3")
    copied.train()
    SelfHealingTrainer(SelfHealingTrainer(second)).train()
    attempts = {json.loads(line)["attempt"] for line in (tmp_path / "1/healing/ledger.jsonl").read_text().splitlines()}
    assert attempts == {1, 2}


def test_the_switch_in_the_environment_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("SELF_HEALING", "off")
    trainer = tiny_trainer(tmp_path, max_steps=3)
    SelfHealingTrainer(trainer).train()
    assert not (tmp_path / "healing").exists()


@pytest.mark.parametrize(
    ("fault", "kind"), [("nan-record", "data"), ("nan-loss", "transient"), ("nan-from-then-on", "overflow")]
)
def test_the_diagnosis_says_why_it_was_nan(fault, kind, tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30)
    FAULTS[fault](at_step=5).plant(trainer)
    try:
        SelfHealingTrainer(trainer).train()
    except UnrecoverableError:
        assert fault == "nan-from-then-on"
    entries = read_ledger(tmp_path / "healing" / "ledger.jsonl").entries
    facts = [e.body["facts"] for e in entries if e.name == "facts" and "nan_kind" in e.body["facts"]]
    assert facts[0]["nan_kind"] == kind
    if kind == "data":
        assert facts[0]["nan_rows"] == "0", "the fault marks the first row of its batch"
    told = [h for e in entries if e.kind == "diagnosis" for h in e.body["hypotheses"] if h["name"] == "found-by-probe"]
    assert told, "the answer is part of the diagnosis"


def test_while_training_random_numbers_of_the_models_devices_are_set_aside_and_not_afterwards(tmp_path):
    from self_healing.tensors import random_state

    def devices():
        return {str(device) for of_model in random_state._of_models.values() for device in of_model}

    seen = []
    trainer = tiny_trainer(tmp_path, max_steps=2)
    trainer.model.register_forward_hook(lambda *_: seen.append(devices()))
    SelfHealingTrainer(trainer).train()
    assert seen == [{"cpu"}, {"cpu"}]
    assert devices() == set()

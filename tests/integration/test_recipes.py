"""Recipes unlike the drills': partial windows, batches that losses take apart, used folders, signals outside of steps."""

from __future__ import annotations

import functools
import logging
import math
import multiprocessing
import os
import signal
import time

import pytest

from self_healing import HealingConfig, SelfHealingTrainer, healing
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault
from self_healing.drills.tiny_training import records, tiny_trainer
from self_healing.drills.trained import losses, same, updates, weights

pytestmark = pytest.mark.torch
FAULTS = discover_classes("self_healing.drills.faults", Fault)


@pytest.mark.parametrize("accumulation", [3, 4])
def test_a_replaced_step_in_an_epoch_with_a_partial_window_costs_no_update(accumulation, tmp_path):
    trainer = tiny_trainer(
        tmp_path, max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=accumulation, logging_steps=1
    )
    trainer.train_dataset = records(80, seed=2)  # ten batches
    fault = FAULTS["nan-record"](at_step=1)
    fault.plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    planned = 2 * math.ceil(10 / accumulation)
    assert trainer.state.global_step == updates(trainer) == planned
    assert output.metrics["healing/replaced_steps"] >= 1
    assert math.isfinite(weights(trainer).sum())
    assert all(1.0 < loss < 5.0 for loss in losses(trainer)), "no step mixes what was scaled for different windows"


@pytest.mark.parametrize("fault", ["nan-loss", "oom-once-in-backward"])
def test_a_loss_that_takes_the_labels_out_of_its_batch_can_be_run_again(fault, tmp_path):
    from transformers import BatchEncoding, default_data_collator

    made = []
    for name in ("clean", "ours"):
        trainer = tiny_trainer(tmp_path / name, max_steps=12, label_smoothing_factor=0.1)
        trainer.data_collator = lambda rows: BatchEncoding(default_data_collator(rows))
        made.append(trainer)
    made[0].train()
    FAULTS[fault](at_step=5).plant(made[1])
    SelfHealingTrainer(made[1]).train()
    assert same(*made)


def test_a_step_is_made_up_with_the_trainers_own_clipping(tmp_path):
    import torch
    from transformers import Trainer

    if not hasattr(Trainer, "_clip_grad_norm"):
        pytest.skip("this version of transformers clips inside its loop")

    class ByValue(Trainer):
        def _clip_grad_norm(self, model):
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.001)

    made = []
    for name in ("clean", "ours"):
        trainer = tiny_trainer(tmp_path / name, max_steps=12)
        trainer.__class__ = ByValue
        made.append(trainer)
    made[0].train()
    FAULTS["nan-loss"](at_step=5).plant(made[1])
    assert SelfHealingTrainer(made[1]).train().metrics["healing/made_up_steps"] == 1
    assert same(*made)


def test_a_step_is_made_up_with_the_momentum_that_it_had(tmp_path):
    import torch

    made = []
    for name in ("clean", "ours"):
        trainer = tiny_trainer(tmp_path / name, max_steps=12)
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=5e-3)
        trainer.lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizer, 1e-2, total_steps=15)
        made.append(trainer)
    made[0].train()
    FAULTS["nan-loss"](at_step=5).plant(made[1])
    assert SelfHealingTrainer(made[1]).train().metrics["healing/made_up_steps"] == 1
    assert same(*made)


def test_a_step_that_is_let_through_is_logged_as_what_it_was(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=12, logging_steps=1)
    FAULTS["nan-from-then-on"](at_step=5).plant(trainer)
    try:
        SelfHealingTrainer(trainer, HealingConfig(nan_action="warn")).train()
    finally:
        assert math.isnan(losses(trainer)[5])
        assert 0.0 not in losses(trainer)


def test_checkpoints_of_another_run_in_the_folder_are_not_taken_for_ours(tmp_path):
    from safetensors.torch import load_file

    tiny_trainer(tmp_path, max_steps=8, learning_rate=1e-4, save_strategy="steps", save_steps=4).train()
    trainer = tiny_trainer(tmp_path, max_steps=20)
    trainer.model.register_forward_hook(lambda *_: 1 / 0 if trainer.state.global_step == 4 else None)
    with pytest.raises(ZeroDivisionError):
        SelfHealingTrainer(trainer).train()
    saved = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    ours = trainer.model.state_dict()
    assert all(value.equal(ours[name]) for name, value in saved.items())


def test_a_signal_during_the_last_evaluation_reaches_the_program(tmp_path):
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("ours"))
    try:
        trainer = tiny_trainer(tmp_path, max_steps=-1, num_train_epochs=1, eval_strategy="epoch")
        trainer.train_dataset = records(40, seed=2)

        def ask_to_end(module, *_):
            if not module.training and not came:
                came.append("sent")
                os.kill(os.getpid(), signal.SIGTERM)

        trainer.model.register_forward_hook(ask_to_end)
        SelfHealingTrainer(trainer).train()
        time.sleep(0.05)
        assert came == ["sent", "ours"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_child_that_was_forked_during_training_can_be_terminated(tmp_path):
    codes = []
    trainer = tiny_trainer(tmp_path, max_steps=3)

    def start_and_end_a_child(*_):
        if not codes:
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            child.start()
            time.sleep(0.3)
            child.terminate()
            child.join(10)
            codes.append(child.exitcode)
            child.kill()

    trainer.model.register_forward_hook(start_and_end_a_child)
    SelfHealingTrainer(trainer).train()
    assert codes == [-signal.SIGTERM]


def test_names_that_somebody_else_replaces_meanwhile_are_left_alone_and_named_in_the_log(tmp_path, caplog):
    from transformers import TrainerCallback

    trainer, theirs = tiny_trainer(tmp_path, max_steps=3), {}

    class Replace(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            for name in ("training_step", "log", "train") if state.global_step == 1 else ():
                theirs[name] = functools.partial(getattr(trainer, name))
                setattr(trainer, name, theirs[name])

    trainer.add_callback(Replace())
    with caplog.at_level(logging.WARNING, "self_healing"), healing(trainer):
        trainer.train()
    assert {name: vars(trainer)[name] for name in theirs} == theirs
    for name in theirs:
        assert f"Trainer.{name} was replaced by somebody else" in caplog.text

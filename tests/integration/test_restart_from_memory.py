"""Returns to states in memory by entering `train()` anew: before transformers 5.3, and where the data are no longer kept.

In newer versions every state is made one for restarts only, by a budget for kept data that not even one batch fits into.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault, once_before_forward
from self_healing.drills.tiny_training import records, tiny_model, tiny_trainer
from self_healing.drills.trained import losses, same, updates, weights

from .rehearsed import logged, make_with_model_init
from .rolled_back import default, few_records, finite_stream, made
from .test_returning import find_session, notes, raise_once_at, spoil_memory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]  # a run that returns for ever must not last
FAULTS = discover_classes("self_healing.drills.faults", Fault)
TRANSIENT = [name for name, fault in FAULTS.items() if fault.needs_rollback and fault.is_transient]
NO_DATA_KEPT = 1
"""Bytes of data that are kept: every state becomes one for restarts only."""


def watched(trainer, *, budget=NO_DATA_KEPT):
    """Keep no data, and count how often training is entered; return the steps at which it was left and entered."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def __init__(self):
            self.entered = 0

        def on_train_begin(self, args, state, control, **kwargs):
            self.entered += 1
            (session,) = find_session(trainer)
            session.rollback.keeper.loop.data.budget_bytes = budget

    watch = Watch()
    trainer.add_callback(watch)
    return watch


def guarded(trainer, every=3, **settings):
    """Train with a guard that can only return by entering anew."""
    watch = watched(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=every, **settings)).train()
    return watch, output.metrics


def without_figures(trainer):
    """Return what was logged, without clocks and without what is said of the healing."""
    return [
        {key: value for key, value in entry.items() if not key.startswith("healing/")} for entry in logged(trainer)
    ]


def assert_no_trace(trainer, stock):
    assert trainer.state.global_step == stock.state.global_step
    assert updates(trainer) == updates(stock)
    assert same(trainer, stock)
    assert without_figures(trainer) == without_figures(stock)
    assert not (Path(trainer.args.output_dir) / "healing" / "restart").exists()


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind, steps=13):
        if kind not in done:
            done[kind] = made(kind, tmp_path_factory.mktemp("clean"), steps)
            done[kind].train()
        return done[kind]

    return get


def drilled(folder):
    return tiny_trainer(folder, logging_steps=1)


# -- harm that came once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", TRANSIENT)
def test_harm_that_came_once_leaves_no_trace(fault, clean, tmp_path):
    trainer = drilled(tmp_path)
    FAULTS[fault]().plant(trainer)
    watch, metrics = guarded(trainer, every=10)
    assert_no_trace(trainer, clean(drilled, 60))
    assert metrics["healing/rollbacks"] == 1
    assert watch.entered == 2
    assert not list(tmp_path.glob("checkpoint-*"))


def nan_in_a_weight(trainer, *steps):
    def harm(model):
        next(p for p in model.parameters() if p.requires_grad and p.dim() > 1).data.view(-1)[5] = float("nan")

    for step in steps:
        once_before_forward(trainer, step, harm)


LOG_EVERY_3 = {"logging_steps": 3, "eval_strategy": "epoch"}
KINDS = {
    "dropout": "dropout",
    "accumulation-4": "accumulation-4",
    "accumulation-2": lambda folder: default(folder, 80, gradient_accumulation_steps=2),
    "log-every-3-evaluate-each-epoch": lambda folder: default(folder, **LOG_EVERY_3),
    "scheduler-and-sgd": "scheduler-and-sgd",
    "epochs": lambda folder: default(folder, max_steps=-1, num_train_epochs=2.6),
    "lora": "lora",
    "changing-buffers": "changing-buffers",
    "finite-stream": finite_stream,
    "workers-2": "workers-2",
    "persistent-workers": "persistent-workers",
    "sft": "sft",
    "sft-accumulation-4": "sft-accumulation-4",
    "dpo": "dpo",
    "grpo": "grpo",
    "grpo-generation-over-4-steps": "grpo-generation-over-4-steps",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_training_leaves_no_trace(kind, clean, tmp_path):
    """Exceptions in the first epoch and in the third, harm in the second: each is returned from by a restart."""
    kind = KINDS[kind]
    stock = clean(kind)
    trainer = made(kind, tmp_path)
    raise_once_at(trainer, 2, 11)
    nan_in_a_weight(trainer, 8)
    watch, metrics = guarded(trainer)
    assert_no_trace(trainer, stock)
    assert metrics["healing/rollbacks"] == 3
    assert watch.entered == 4

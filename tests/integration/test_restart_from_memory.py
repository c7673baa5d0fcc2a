"""Returns to states in memory by entering `train()` anew: before transformers 5.3, and where the data are no longer kept.

In newer versions every state is made one for restarts only, by a budget for kept data that not even one batch fits into.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.core.discover import discover_classes
from self_healing.drills.fault import Fault, once_before_forward
from self_healing.drills.tiny_training import records, tiny_model, tiny_trainer
from self_healing.drills.trained import losses, same, updates

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
    return [{key: value for key, value in entry.items() if not key.startswith("healing/")} for entry in logged(trainer)]


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


def test_a_model_that_the_trainer_makes_itself_is_not_made_again(tmp_path):
    def make(folder, *fails_at):
        trainer, left = few_records(make_with_model_init(folder)), set(fails_at)
        trainer.args.max_steps = 13
        original = trainer.compute_loss

        def compute_loss(*args, **kwargs):
            if trainer.state.global_step in left:
                left.discard(trainer.state.global_step)
                raise RuntimeError("an unspecified launch failure")
            return original(*args, **kwargs)

        trainer.compute_loss = compute_loss
        return trainer

    stock = make(tmp_path / "stock")
    stock.train()
    trainer = make(tmp_path / "ours", 2, 11)
    watch, _ = guarded(trainer)
    assert watch.entered == 3
    assert_no_trace(trainer, stock)
    assert trainer.model_init is not None


def test_a_worker_that_was_killed_is_replaced_by_a_new_loader(clean, tmp_path):
    """Data are kept here, but the loader has failed: only a new one can go on, in every version."""
    trainer = made("workers-2", tmp_path)
    trainer.train_dataset = DiesOnce(trainer.train_dataset, tmp_path / "has-died")
    watch = watched(trainer, budget=1 << 30)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=3)).train()
    assert (tmp_path / "has-died").exists()
    assert watch.entered == 2
    assert_no_trace(trainer, clean("workers-2"))


class DiesOnce(list):
    """Records of which one kills the process that reads it, the first time."""

    def __init__(self, rows, mark):
        super().__init__(rows)
        self.mark = mark

    def __getitem__(self, index):
        if index == 7 and not self.mark.exists() and self.mark.parent.joinpath("healing").exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_state_that_memory_has_not_kept_is_not_entered_at(clean, tmp_path):
    from transformers import TrainerCallback

    trainer = made("dropout", tmp_path)
    raise_once_at(trainer, 8)

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7 and not notes(tmp_path, "state-damaged"):
                spoil_memory(find_session(trainer)[0].rollback.keeper)

    trainer.add_callback(Spoil())
    _, metrics = guarded(trainer)
    (told,) = notes(tmp_path, "state-damaged")
    assert "step-6 was changed in memory" in told
    assert metrics["healing/lost_steps"] == 8 - 3
    assert_no_trace(trainer, clean("dropout"))


def test_checkpoints_of_the_run_are_as_without(tmp_path):
    def make(folder):
        return default(folder, save_strategy="steps", save_steps=4, save_total_limit=2)

    stock = made(make, tmp_path / "stock")
    stock.train()
    trainer = made(make, tmp_path / "ours")
    raise_once_at(trainer, 2, 11)
    guarded(trainer)
    assert_no_trace(trainer, stock)
    folders = [sorted(path.name for path in (tmp_path / who).glob("checkpoint-*")) for who in ("stock", "ours")]
    assert folders[0] == folders[1] == ["checkpoint-12", "checkpoint-13"]
    saved = [
        json.loads((tmp_path / who / "checkpoint-12" / "trainer_state.json").read_text()) for who in ("stock", "ours")
    ]
    assert saved[0]["global_step"] == saved[1]["global_step"] == 12
    again = made(make, tmp_path / "ours", 15)
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    (told,) = notes(tmp_path / "ours", "resuming")
    assert told.startswith("checkpoint-13 is resumed from")


# -- data that are left out ------------------------------------------------------------------------------


def in_order(folder, left_out=(), **arguments):
    """A trainer that reads its records in their order, without those of some batches of eight."""
    import torch

    rows = [row for place, row in enumerate(records(160, seed=2)) if place // 8 not in left_out]
    trainer = tiny_trainer(folder, model=tiny_model(dropout=0.1), logging_steps=1, **arguments)
    trainer.train_dataset = rows
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(rows)
    return trainer


def raise_at_batch(trainer, number):
    """Fail whenever one batch is trained on."""
    first = records(160, seed=2)[8 * number]["input_ids"]

    def fail(module, args, kwargs):
        if module.training and kwargs["input_ids"][0].tolist() == first:
            raise RuntimeError("cannot be trained on")

    trainer.model.register_forward_pre_hook(fail, with_kwargs=True)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_batch_that_raises_is_left_out_and_stays_out(accumulation, tmp_path):
    """After it has been left out, one more restart to before it: the batch must not come back."""
    steps, settings = 16 // accumulation, {"gradient_accumulation_steps": accumulation}
    trainer = made(lambda folder: in_order(folder, **settings), tmp_path / "ours", steps)
    raise_at_batch(trainer, 6)
    raise_once_at(trainer, steps - 2)
    watch, _ = guarded(trainer, every=steps)  # only the first state
    left_out = range(6 - 6 % accumulation, 6 - 6 % accumulation + accumulation)
    without = made(lambda folder: in_order(folder, left_out, **settings), tmp_path / "without", steps)
    without.train()
    assert watch.entered >= 3
    assert losses(trainer) == losses(without)
    assert same(trainer, without)

"""Trainers whose `train()` is a loop of their own, with the least that such a loop needs; TRL's PPO is in tests/ppo."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from self_healing import SelfHealingTrainer
from self_healing.adapters.own_loop.abilities import OwnLoopAbilities
from self_healing.adapters.own_loop.batches import LoaderEmptyError
from self_healing.adapters.own_loop.recognised import has_own_loop, why_only_watched
from self_healing.adapters.own_loop.update_guard import UpdateGuard
from self_healing.adapters.own_loop.update_state import UpdateState
from self_healing.adapters.wrapping import Wrapping
from self_healing.drills.tiny_training import records, tiny_model

pytestmark = pytest.mark.torch

UPDATES = 7


@pytest.fixture(scope="module")
def own_loop_class():
    import torch
    from transformers import Trainer, TrainerState

    @dataclass
    class CountingState(TrainerState):
        episode: int = 0

    class OwnLoopTrainer(Trainer):
        """Fetches for ever, and updates after two micro-batches of a batch."""

        def train(self):
            args, accelerator, loader = self.args, self.accelerator, self.dataloader
            self.model.train()

            def for_ever():
                while True:
                    yield from loader

            batches = for_ever()
            self.state.global_step = self.state.episode = 0
            self.state.max_steps = args.num_total_batches
            self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
            for _ in range(args.num_total_batches):
                self.state.episode += args.batch_size
                batch = next(batches)
                for half in range(2):
                    with accelerator.accumulate(self.model):
                        part = {name: value[half::2] for name, value in batch.items()}
                        loss = self.model(**part).loss + 0.0 * torch.rand(())
                        accelerator.backward(loss)
                        self.optimizer.step()
                        self.optimizer.zero_grad()
                self.state.global_step += 1
                self.state.epoch = self.state.episode / len(self.train_dataset)
                self.log({"loss": float(loss.detach()), "episode": self.state.episode, "drawn": float(torch.rand(()))})
                self.lr_scheduler.step()
                self.control = self.callback_handler.on_step_end(args, self.state, self.control)
            self.control = self.callback_handler.on_train_end(args, self.state, self.control)
            return "what it likes"

    OwnLoopTrainer.state_class = CountingState
    return OwnLoopTrainer


@pytest.fixture
def make(own_loop_class, tmp_path):
    from torch.utils.data import DataLoader
    from transformers import TrainingArguments, default_data_collator, set_seed

    def made(name, rows=12, size=4):
        args = TrainingArguments(
            output_dir=str(tmp_path / name),
            gradient_accumulation_steps=2,
            learning_rate=5e-3,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            save_strategy="no",
        )
        args.num_total_batches, args.batch_size = UPDATES, size
        trainer = own_loop_class(model=tiny_model(), args=args, train_dataset=records(rows, seed=2))
        trainer.accelerator.gradient_accumulation_steps = 2
        trainer.create_optimizer_and_scheduler(UPDATES)
        loader = DataLoader(trainer.train_dataset, size, shuffle=True, drop_last=True, collate_fn=default_data_collator)
        trainer.optimizer, trainer.dataloader = trainer.accelerator.prepare(trainer.optimizer, loader)
        trainer.state = own_loop_class.state_class()
        set_seed(3)
        return trainer

    return made


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def is_same(one, other):
    import torch

    return all(torch.equal(one[name], other[name]) for name in one)


def at_forward(trainer, number, do):
    seen = []

    def hook(_module, _args, output):
        seen.append(None)
        if len(seen) == number:
            do(output)

    trainer.model.register_forward_hook(hook)


def nan_gradient(output):
    output.logits.register_hook(lambda gradient: gradient * math.nan)


def out_of_memory(_output):
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def unplugged(_output):
    raise ConnectionResetError("Connection reset by peer")


@pytest.mark.parametrize("update", [1, 3, 4, 7], ids=["first", "last batch", "next epoch", "last"])
@pytest.mark.parametrize("half", [1, 2])
@pytest.mark.parametrize("fault", [nan_gradient, out_of_memory, unplugged])
def test_what_comes_once_leaves_no_trace(fault, half, update, make):
    stock = make("stock")
    stock.train()
    trainer = make("guarded")
    at_forward(trainer, 2 * (update - 1) + half, fault)
    assert SelfHealingTrainer(trainer).train() == "what it likes"
    assert is_same(weights(stock), weights(trainer))
    assert stock.state.log_history == trainer.state.log_history
    assert (trainer.state.global_step, trainer.args.num_total_batches) == (UPDATES, UPDATES)


def test_a_healthy_run_is_the_stock_run(make):
    stock = make("stock")
    stock.train()
    trainer = make("guarded")
    assert SelfHealingTrainer(trainer).train() == "what it likes"
    assert is_same(weights(stock), weights(trainer))
    assert stock.state.log_history == trainer.state.log_history


def without_loader(trainer):
    del trainer.dataloader


def without_number(trainer):
    del trainer.args.num_total_batches


def without_optimizer(trainer):
    trainer.optimizer = None  # one that is made inside of `train`


LACKING = {"dataloader": without_loader, "args.num_total_batches": without_number, "optimizer.step": without_optimizer}


@pytest.mark.parametrize("path", LACKING)
def test_a_loop_that_lacks_what_is_needed_is_only_watched(path, make):
    trainer = make("lacking")
    LACKING[path](trainer)
    why = why_only_watched(trainer)
    assert why is not None
    assert path in why
    trainer.train = lambda: "trained"
    assert SelfHealingTrainer(trainer).train() == "trained"
    ledger = Path(trainer.args.output_dir, "healing", "ledger.jsonl").read_text().splitlines()
    told = [entry for entry in map(json.loads, ledger) if entry["name"] == "own-loop"]
    assert why in told[0]["body"]["text"]


def test_a_loop_that_has_all_of_it_is_guarded(make):
    trainer = make("whole")
    assert why_only_watched(trainer) is None


def test_gradients_are_clipped_only_where_a_plan_has_asked_for_it(make):
    trainer = make("clipped")
    guard, changes = UpdateGuard(trainer, acts=True, lets_through=False), Wrapping()
    abilities = OwnLoopAbilities(trainer, guard, UpdateState(trainer, memory_fraction=0.5), None)
    norms = []

    def measure(*_):
        norms.append(float(sum(p.grad.square().sum() for p in trainer.model.parameters()).sqrt()))
        limit = abilities.tighten_clipping(factor=0.5, initial=0.2)
        assert limit == pytest.approx(0.2 * 0.5 ** (len(norms) - 1))

    trainer.optimizer.optimizer.register_step_pre_hook(measure)
    guard.attach(changes)
    trainer.train()
    changes.restore()
    assert norms[0] > 0.2
    assert norms[1:4] == pytest.approx([0.2, 0.1, 0.05], rel=1e-3)
    before = guard.limit
    assert abilities.tighten_clipping(factor=2.0, initial=0.2) == pytest.approx(2 * before)


def test_a_loader_without_a_batch_is_an_error_and_no_endless_loop(make):
    trainer = make("empty", rows=3)
    with pytest.raises(LoaderEmptyError, match="3 records"):
        SelfHealingTrainer(trainer).train()


def test_own_loops_are_told_from_ways_into_the_usual_one(own_loop_class):
    from transformers import Seq2SeqTrainer, Trainer

    class Around(Trainer):
        def train(self):
            return super().train()

    class Passing(Trainer):
        def train(self, *args, **kwargs):
            return Trainer.train(self, *args, **kwargs)

    class Derived(own_loop_class):
        pass

    def found(cls):
        return has_own_loop(cls.__new__(cls))

    assert found(own_loop_class)
    assert found(Derived)
    assert not any(map(found, (Trainer, Seq2SeqTrainer, Around, Passing)))

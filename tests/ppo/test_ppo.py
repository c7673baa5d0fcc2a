"""A PPO training met by faults: as many updates as planned, and the same weights to the bit where that is promised.

Only older versions of TRL have the trainer: `make test-ppo` installs one of them.
"""

from __future__ import annotations

import json
import math
import os
import signal

import pytest

pytest.importorskip("trl.experimental.ppo", reason="this version of TRL has no PPOTrainer: make test-ppo")

from self_healing import HealingConfig, SelfHealingTrainer, healing
from self_healing.core.errors import Preempted, UnrecoverableError
from self_healing.drills.tiny_ppo import tiny_ppo

from .ppo_faults import (
    FAULTS,
    MICRO_BATCHES,
    SAMPLES,
    at_step_end,
    count_steps,
    is_finite,
    is_same,
    ledger,
    logged,
    nan_gradient,
    on_forward,
    once,
    out_of_memory,
    postmortem,
    weights,
    without_pads,
)

pytestmark = pytest.mark.torch

UPDATES = 5


@pytest.fixture(autouse=True, scope="module")
def quiet_frameworks():
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The same training without the healer and without a fault."""
    trainer = tiny_ppo(tmp_path_factory.mktemp("stock"), updates=UPDATES, num_sample_generations=2)
    trainer.train()
    return weights(trainer), logged(trainer)


def test_a_healthy_run_is_the_stock_run_to_the_bit_and_leaves_the_trainer_as_it_was(stock, tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES, num_sample_generations=2)
    before = dict(vars(trainer)), dict(vars(trainer.args)), set(vars(trainer.accelerator)), set(vars(trainer.optimizer))
    callbacks = list(trainer.callback_handler.callbacks)
    assert SelfHealingTrainer(trainer).train() is None
    assert is_same(stock[0], weights(trainer))
    assert stock[1] == logged(trainer)
    assert vars(trainer).keys() == before[0].keys()
    assert trainer.dataloader is before[0]["dataloader"]
    assert vars(trainer.args) == before[1]
    assert set(vars(trainer.accelerator)) == before[2]
    assert set(vars(trainer.optimizer)) == before[3]
    assert trainer.callback_handler.callbacks == callbacks
    assert postmortem(trainer)["exit_reason"] == "completed"


@pytest.mark.parametrize("update", [3, 4], ids=["last batch of the loader", "first batch of the next epoch"])
@pytest.mark.parametrize("fault", FAULTS)
def test_what_comes_once_leaves_no_trace(fault, update, stock, tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES, num_sample_generations=2)
    FAULTS[fault](trainer, update)
    arguments = dict(vars(trainer.args))
    SelfHealingTrainer(trainer).train()
    assert is_same(stock[0], weights(trainer))
    assert stock[1] == logged(trainer)
    assert trainer.state.global_step == trainer.state.max_steps == UPDATES
    assert vars(trainer.args) == arguments
    assert postmortem(trainer)["final_metrics"]["healing/repeated_updates"] == 1


def lora():
    from peft import LoraConfig

    return {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}


RECIPES = {
    "lora": lora,
    "two mini-batches": lambda: {"num_mini_batches": 2},
    "a step for each mini-batch": lambda: {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "num_mini_batches": 2,
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_other_recipes_are_exact_too(recipe, tmp_path):
    found = []
    for name in ("stock", "healed"):
        trainer = tiny_ppo(tmp_path / name, updates=3, **RECIPES[recipe]())
        if name == "healed":
            FAULTS["oom in backward"](trainer, 2)
            FAULTS["gradient not finite"](trainer, 3)
        (trainer if name == "stock" else SelfHealingTrainer(trainer)).train()
        found.append(trainer)
    assert is_same(*map(weights, found))
    assert logged(found[0]) == logged(found[1])
    assert postmortem(found[1])["final_metrics"]["healing/repeated_updates"] == 2


def test_samples_are_made_again_where_memory_ran_out_once(stock, tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES, num_sample_generations=2)
    once(trainer, lambda _o: out_of_memory(), trains=False, update=4, at=SAMPLES // 2)  # after the third
    SelfHealingTrainer(trainer).train()
    assert is_same(stock[0], weights(trainer))
    assert stock[1] == logged(trainer)


def test_samples_are_left_out_where_memory_does_not_suffice(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=2, num_sample_generations=2)
    on_forward(trainer, lambda _output, ids: out_of_memory() if len(ids) > 2 else None, trains=False)
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 2
    assert len([entry for entry in ledger(trainer) if entry["name"] == "no-samples"]) == 2


def test_the_block_guards_too(stock, tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES, num_sample_generations=2)
    FAULTS["gradient not finite"](trainer, 2)
    with healing(trainer):
        trainer.train()
    assert is_same(stock[0], weights(trainer))


def test_callbacks_hear_of_one_training(tmp_path):
    from transformers import TrainerCallback

    class Listener(TrainerCallback):
        heard = []

        def on_train_begin(self, args, state, control, **kwargs):
            self.heard.append("begin")

        def on_step_end(self, args, state, control, **kwargs):
            self.heard.append(state.global_step)

        def on_train_end(self, args, state, control, **kwargs):
            self.heard.append("end")

    trainer = tiny_ppo(tmp_path, updates=3, callbacks=[Listener()])
    FAULTS["oom in backward"](trainer, 2)
    SelfHealingTrainer(trainer).train()
    assert Listener.heard == ["begin", 1, 2, 3, "end"]


def test_a_step_that_is_never_finite_is_left_out_and_told(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES)

    def spoil(output, _ids):
        if trainer.state.global_step == 2:
            nan_gradient(output)

    on_forward(trainer, spoil, trains=True)
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == UPDATES
    assert is_finite(trainer)
    told = postmortem(trainer)["final_metrics"]
    assert told["healing/skipped_steps"] >= 2  # every step of the third update, in the second attempt
    assert told["healing/repeated_updates"] == 1
    assert any(entry["kind"] == "incident" and entry["name"] == "gradient-not-finite" for entry in ledger(trainer))


def test_a_run_that_is_never_finite_again_is_stopped_with_finite_weights(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=12)

    def spoil(output, _ids):
        if trainer.state.global_step >= 1:
            nan_gradient(output)

    on_forward(trainer, spoil, trains=True)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer, HealingConfig(nan_patience=1, max_consecutive_skips=3)).train()
    assert trainer.state.global_step < 12
    assert is_finite(trainer)
    assert any("is left out" in str(entry["body"]) for entry in ledger(trainer) if entry["kind"] == "outcome")
    assert postmortem(trainer)["exit_reason"] == "unrecoverable"


def test_micro_batches_are_halved_where_memory_suffices_for_no_more(tmp_path):
    import torch

    settings = {"updates": UPDATES, "optim": "sgd", "learning_rate": 0.1}
    clean = tiny_ppo(tmp_path / "clean", **settings)
    without_pads(clean)
    steps = [count_steps(clean)]
    before = weights(clean)
    clean.train()
    tight = tiny_ppo(tmp_path / "tight", **settings)
    without_pads(tight)
    steps.append(count_steps(tight))
    on_forward(tight, lambda _output, ids: out_of_memory() if len(ids) > 1 else None, trains=True)
    SelfHealingTrainer(tight).train()
    assert tight.state.global_step == UPDATES
    assert steps[0] == steps[1]  # also with the last batch of the loader, where nothing is accumulated
    found, wanted = weights(tight), weights(clean)
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-6) for name in wanted)
    assert not is_same(before, wanted)
    assert (tight.args.per_device_train_batch_size, tight.args.gradient_accumulation_steps) == (2, 2)
    assert tight.accelerator.gradient_accumulation_steps == 2
    assert any("per_device_train_batch_size 2 -> 1" in str(entry["body"]) for entry in ledger(tight))


def test_rollouts_are_halved_where_memory_suffices_for_no_more(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES)
    on_forward(trainer, lambda _output, ids: out_of_memory() if len(ids) > 1 else None, trains=False)
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == UPDATES
    assert is_finite(trainer)
    assert trainer.args.local_rollout_forward_batch_size == 2
    assert any("local_rollout_forward_batch_size 2 -> 1" in str(entry["body"]) for entry in ledger(trainer))


@pytest.mark.parametrize(
    "exception", [KeyError("labels"), MemoryError("out of memory")], ids=["a bug", "no memory at all"]
)
def test_what_comes_every_time_ends_the_run_at_the_last_whole_update(exception, tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES)
    kept, passes = [], []

    def fail(_output, _ids):
        if trainer.state.global_step == 2:
            passes.append(None)
            if len(passes) % 3 == 0:  # after an optimizer step of the update, each time
                raise exception

    trainer.add_callback(at_step_end(2, lambda: kept.append(weights(trainer))))
    on_forward(trainer, fail, trains=True)
    with pytest.raises(type(exception)):
        SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 2
    assert is_same(kept[0], weights(trainer))
    assert (tmp_path / "checkpoint-2").is_dir()
    assert trainer.args.num_total_batches == UPDATES
    assert postmortem(trainer)["exit_reason"] == "exception"


def test_a_run_whose_weights_break_every_time_ends_with_those_of_the_last_whole_update(tmp_path):
    import torch

    trainer = tiny_ppo(tmp_path, updates=UPDATES)
    kept = []

    def spoil(_output, _ids):
        if trainer.state.global_step == 2:
            with torch.no_grad():
                next(trainer.model.value_model.parameters())[0, 0] = math.nan

    trainer.add_callback(at_step_end(2, lambda: kept.append(weights(trainer))))
    on_forward(trainer, spoil, trains=True)
    with pytest.raises(UnrecoverableError):
        SelfHealingTrainer(trainer).train()
    assert is_same(kept[0], weights(trainer))
    assert trainer.state.global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()


def test_checkpointing_goes_on_after_a_generation_that_has_failed(tmp_path):
    found = []
    for name in ("stock", "healed"):
        trainer = tiny_ppo(tmp_path / name, updates=2)
        trainer.model.gradient_checkpointing_enable()
        if name == "healed":
            once(trainer, lambda _o: out_of_memory(), trains=False, update=1, at=3)
        (trainer if name == "stock" else SelfHealingTrainer(trainer)).train()
        assert trainer.model.is_gradient_checkpointing
        assert trainer.model.policy.is_gradient_checkpointing
        found.append(weights(trainer))
    assert is_same(*found)


def test_checkpoints_of_the_run_are_written_as_asked(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=3, save_strategy="steps", save_steps=2)
    FAULTS["oom in backward"](trainer, 3)
    SelfHealingTrainer(trainer).train()
    assert {folder.name for folder in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}


def test_a_save_that_fails_leaves_the_whole_model_in_place(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=2)
    (tmp_path / "checkpoint-1").write_text("in the way")
    model = trainer.model

    def fail(_output, _ids):
        if trainer.state.global_step == 1:
            raise KeyError("labels")

    on_forward(trainer, fail, trains=True)
    with pytest.raises(KeyError):
        SelfHealingTrainer(trainer).train()
    assert trainer.model is model
    assert "the emergency checkpoint failed" in str([e["body"] for e in ledger(trainer) if e["name"] == "emergency"])


def test_sigterm_saves_after_the_update(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES)
    once(trainer, lambda _o: os.kill(os.getpid(), signal.SIGTERM), trains=True, update=2)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted, match="cannot resume"):
        SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()
    assert signal.getsignal(signal.SIGTERM) is before
    assert postmortem(trainer)["exit_reason"] == "sigterm"


def test_who_only_watches_changes_nothing(tmp_path):
    import torch

    runs = []
    for name in ("stock", "watched"):
        trainer = tiny_ppo(tmp_path / name, updates=3)
        once(trainer, nan_gradient, trains=True, update=3, at=MICRO_BATCHES)
        (trainer if name == "stock" else SelfHealingTrainer(trainer, HealingConfig(mode="observe"))).train()
        runs.append(trainer)
    assert not is_finite(runs[0])
    one, other = weights(runs[0]), weights(runs[1])
    assert all(torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in one)
    assert str(logged(runs[0])) == str(logged(runs[1]))  # NaN is not equal to itself


def test_rules_hear_what_is_logged(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=3)
    SelfHealingTrainer(trainer).train()
    history = [entry for entry in ledger(trainer) if entry["kind"] == "signal"]
    text = json.dumps(history)
    assert "kl" in text
    assert "grad_norm" in text


def test_there_is_no_dry_run(tmp_path):
    with pytest.raises(ValueError, match="loop of its own"):
        SelfHealingTrainer(tiny_ppo(tmp_path)).dry_run()

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

pytestmark = pytest.mark.torch

UPDATES = 5
MICRO_BATCHES = 4
"""Forward passes with gradients in each update: two micro-batches, twice."""


@pytest.fixture(autouse=True, scope="module")
def quiet_frameworks():
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


def weights(trainer):
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def logged(trainer):
    """Return what was logged but for its clock."""
    return [{name: value for name, value in entry.items() if name != "eps"} for entry in trainer.state.log_history]


def is_same(one, other):
    import torch

    return all(torch.equal(one[name], other[name]) for name in one)


def is_finite(trainer):
    import torch

    return all(bool(torch.isfinite(value).all()) for value in weights(trainer).values())


def ledger(trainer):
    with open(f"{trainer.args.output_dir}/healing/ledger.jsonl") as lines:
        return [json.loads(line) for line in lines]


def notes(trainer, name):
    return [entry["body"] for entry in ledger(trainer) if entry["name"] == name]


def postmortem(trainer):
    with open(f"{trainer.args.output_dir}/postmortem.json") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """The same training without the healer and without a fault."""
    trainer = tiny_ppo(tmp_path_factory.mktemp("stock"), updates=UPDATES, num_sample_generations=2)
    trainer.train()
    return weights(trainer), logged(trainer)


# -- faults, through the model ---------------------------------------------------------------------------


def out_of_memory():
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def on_forward(trainer, do, *, trains):
    """Call `do(output, input_ids)` after each forward pass of the policy, with gradients or without."""
    import torch

    def hook(_module, _args, kwargs, output):
        if torch.is_grad_enabled() == trains:
            return do(output, kwargs["input_ids"])
        return None

    trainer.model.policy.register_forward_hook(hook, with_kwargs=True)


def once(trainer, do, *, trains, at):
    """Do something at one forward pass only, counted over all attempts."""
    seen = []

    def count(output, _ids):
        seen.append(None)
        if len(seen) == at:
            do(output)

    on_forward(trainer, count, trains=trains)


def raising(exception):
    def do(_output):
        raise exception

    return do


def nan_gradient(output):
    output.logits.register_hook(lambda gradient: gradient * math.nan)


def oom_in_backward(output):
    output.logits.register_hook(lambda _gradient: out_of_memory())


def of_update(update, micro_batch=2):
    return (update - 1) * MICRO_BATCHES + micro_batch


def break_a_weight(trainer, update):
    import torch

    def do(_output):
        with torch.no_grad():
            next(trainer.model.value_model.parameters())[0, 0] = math.nan

    once(trainer, do, trains=True, at=of_update(update, MICRO_BATCHES))


FAULTS = {
    "oom in generation": lambda t, _: once(t, lambda _o: out_of_memory(), trains=False, at=40),
    "oom in forward": lambda t, u: once(t, lambda _o: out_of_memory(), trains=True, at=of_update(u)),
    "oom in backward": lambda t, u: once(t, oom_in_backward, trains=True, at=of_update(u)),
    "gradient not finite": lambda t, u: once(t, nan_gradient, trains=True, at=of_update(u)),
    "an exception": lambda t, u: once(t, raising(RuntimeError("a cable was pulled")), trains=True, at=of_update(u)),
    "weight not finite": break_a_weight,
}


# -- tests ---------------------------------------------------------------------------------------------


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
    assert postmortem(trainer)["exit_reason"] == "unrecoverable"


def without_pads(trainer):
    """Have the policy never say the words that end an answer, so that all are equally long."""
    trainer.model.policy.lm_head.register_forward_hook(
        lambda _module, _args, logits: logits.index_fill(-1, logits.new_tensor([0, 1]).long(), -30.0)
    )


def count_steps(trainer):
    import torch

    taken = []
    torch.optim.Optimizer.register_step_post_hook(
        trainer.optimizer.optimizer, lambda *_: taken.append(trainer.state.global_step)
    )
    return taken


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
    kept = []

    def fail(_output, _ids):
        if trainer.state.global_step == 2:
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


def at_step_end(step, do):
    from transformers import TrainerCallback

    class AtStepEnd(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                do()

    return AtStepEnd()


def test_sigterm_saves_after_the_update(tmp_path):
    trainer = tiny_ppo(tmp_path, updates=UPDATES)
    once(trainer, lambda _o: os.kill(os.getpid(), signal.SIGTERM), trains=True, at=of_update(2))
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
        once(trainer, nan_gradient, trains=True, at=of_update(3, MICRO_BATCHES))
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

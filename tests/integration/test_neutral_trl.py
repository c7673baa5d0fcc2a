"""TRL's trainers with the healer on and off: weights and everything logged are the same, to the bit."""

from __future__ import annotations

import math

import pytest

from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.drills.tiny_training import LENGTH, tiny_model

from .rehearsed import logged, of_trl, same, weights

pytestmark = pytest.mark.torch
AT = 5


def make_sft(folder, **arguments):
    return of_trl(folder, "SFT", ["text"], max_length=LENGTH, **arguments)


def make_dpo(folder, **arguments):
    return of_trl(folder, "DPO", ["prompt", "chosen", "rejected"], {"ref_model": tiny_model()}, **arguments)


KINDS = {
    "sft": (make_sft, {"loss", "mean_token_accuracy", "num_tokens", "entropy", "grad_norm", "learning_rate"}),
    "dpo": (make_dpo, {"loss", "rewards/margins", "num_tokens", "entropy", "grad_norm", "learning_rate"}),
}


def train(folder, kind, *, steps, guarded, spoil=lambda trainer: None, logging_steps=1, **arguments):
    trainer = KINDS[kind][0](folder, **arguments)
    trainer.args.max_steps, trainer.args.logging_steps = steps, logging_steps
    spoil(trainer)
    output = (SelfHealingTrainer(trainer) if guarded else trainer).train()
    return trainer, output


def nan_once(trainer):
    """Make whatever the loss of step AT is computed from NaN, in one forward pass."""
    done = []

    def spoil(module, args, kwargs, output):
        if module.training and trainer.state.global_step == AT and not done:
            done.append(True)
            for name in ("loss", "logits", "log_probs"):
                if output.get(name) is not None:
                    output[name] = output[name] * math.nan

    trainer.model.register_forward_hook(spoil, with_kwargs=True)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Stock runs, trained once each."""
    done = {}

    def get(kind, **arguments):
        key = (kind, *sorted(arguments.items()))
        if key not in done:
            done[key], _ = train(tmp_path_factory.mktemp("clean"), kind, guarded=False, **arguments)
        return done[key]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_healthy_steps_are_the_same_in_every_logged_value(kind, clean, tmp_path):
    how = {"steps": 200 if kind == "sft" else 40}
    trainer, _ = train(tmp_path, kind, guarded=True, **how)
    without = clean(kind, **how)
    assert same(list(weights(trainer).values()), list(weights(without).values()))
    assert logged(trainer) == logged(without)
    assert len(logged(without)) == how["steps"] + 1
    assert KINDS[kind][1] <= logged(without)[0].keys()


@pytest.mark.parametrize("logging_steps", [1, 4])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_nan_that_was_made_up_is_not_in_the_weights_nor_in_what_is_logged(
    kind, accumulation, logging_steps, clean, tmp_path
):
    how = {"steps": 12, "gradient_accumulation_steps": accumulation, "logging_steps": logging_steps}
    trainer, output = train(tmp_path, kind, guarded=True, spoil=nan_once, **how)
    assert output.metrics["healing/made_up_steps"] == 1
    without = clean(kind, **how)
    assert same(list(weights(trainer).values()), list(weights(without).values()))
    ours = [{key: entry[key] for key in entry if not key.startswith("healing/")} for entry in logged(trainer)]
    assert ours == logged(without)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_is_left_out_leaves_nothing_to_be_logged_and_nothing_raises(kind, tmp_path):
    """TRL divides the sum of each metric by how many values there are: none, where the only step was left out."""

    def nan_whatever_the_batch(trainer):
        def spoil(module, args, kwargs, output):
            if module.training and AT <= trainer.state.global_step < AT + 2:
                for name in ("loss", "logits", "log_probs"):
                    if output.get(name) is not None:
                        output[name] = output[name] * math.nan

        trainer.model.register_forward_hook(spoil, with_kwargs=True)

    trainer, _ = train(tmp_path, kind, steps=12, guarded=True, spoil=nan_whatever_the_batch)
    assert trainer.state.global_step == 12
    assert all(bool(value.isfinite().all()) for value in weights(trainer).values())

"""Training of GRPO and RLOO that is left in the middle of a step: with half the batch, or for good and gone on later."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

from self_healing import HealingConfig, Preempted, SelfHealingTrainer
from self_healing.adapters.run.data_facts import data_facts, differences, fact_names
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import on_training_forward
from self_healing.drills.tiny_trl import GENERATING, TINY, share_of_letters
from self_healing.drills.trained import same, updates, weights

from .rehearsed import quick_collections  # noqa: F401

pytestmark = pytest.mark.torch
STEPS = 10
WINDOW = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}


class Scored:
    """A reward function that counts the prompts it was asked about, and sees to it that groups are whole."""

    __name__ = "scored"

    def __init__(self):
        self.prompts = Counter()

    def __call__(self, prompts, completions, **_):
        assert all(len(set(prompts[place : place + 4])) == 1 for place in range(0, len(prompts), 4))
        self.prompts.update(prompts)
        return share_of_letters(completions)


def made(folder, kind, **settings):
    return TINY[kind](folder, reward_funcs=Scored(), max_steps=STEPS, learning_rate=1e-3, **WINDOW, **settings)


def rewards(trainer):
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    done = {}

    def get(kind):
        if kind not in done:
            done[kind] = made(tmp_path_factory.mktemp("clean"), kind)
            done[kind].train()
        return done[kind]

    return get


def tokens(trainer):
    return [entry["num_tokens"] for entry in trainer.state.log_history if "num_tokens" in entry]


def run_short_of_memory(trainer, most_rows, at_step, times=10**9):
    """Let no pass over more rows through that scores answers without being one of their generation, from one step on."""
    import torch

    left = [times]

    def spoil(module, args, kwargs):
        if torch.is_grad_enabled() or trainer.state.global_step < at_step or "past_key_values" in kwargs:
            return
        if len(kwargs["input_ids"]) > most_rows and left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)


def end_at(step):
    from transformers import TrainerCallback

    class EndAt(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step:
                os.kill(os.getpid(), signal.SIGTERM)

    return EndAt()


@pytest.mark.parametrize("kind", GENERATING)
def test_with_half_the_batch_the_same_answers_are_generated_and_learned_from(kind, clean, tmp_path):
    trainer = made(tmp_path, kind)
    run_short_of_memory(trainer, most_rows=4, at_step=4)
    SelfHealingTrainer(trainer).train()
    assert updates(trainer) == STEPS
    assert rewards(trainer) == rewards(clean(kind))
    assert tokens(trainer) == tokens(clean(kind)), "what was generated in vain is not counted"
    assert trainer.reward_funcs[0].prompts == clean(kind).reward_funcs[0].prompts
    assert (weights(trainer) - weights(clean(kind))).abs().max() < 1e-5
    args = trainer.args
    sizes = (args.per_device_train_batch_size, args.gradient_accumulation_steps, args.steps_per_generation)
    assert sizes == (8, 2, 4), "the user's settings are the user's again"


@pytest.mark.parametrize("kind", GENERATING)
def test_memory_that_is_short_once_after_a_generation_leaves_no_trace(kind, clean, tmp_path):
    trainer = made(tmp_path, kind)
    run_short_of_memory(trainer, most_rows=4, at_step=4, times=1)
    output = SelfHealingTrainer(trainer).train()
    assert output.metrics["healing/out_of_memory"] == 1
    assert same(trainer, clean(kind)), "the same answers were drawn again"
    assert rewards(trainer) == rewards(clean(kind))
    assert tokens(trainer) == tokens(clean(kind)), "they are counted once"


@pytest.mark.parametrize("kind", GENERATING)
def test_a_batch_smaller_than_a_group_still_learns_from_whole_groups(kind, clean, tmp_path):
    trainer = made(tmp_path, kind)
    run_short_of_memory(trainer, most_rows=2, at_step=0)
    SelfHealingTrainer(trainer).train()
    assert updates(trainer) == STEPS
    assert trainer.reward_funcs[0].prompts == clean(kind).reward_funcs[0].prompts, "no prompt twice, none left out"


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize("at_step", [4, 5])
def test_a_checkpoint_that_is_written_in_the_middle_of_a_step_is_gone_on_from_exactly(kind, at_step, clean, tmp_path):
    import torch

    trainer = made(tmp_path, kind)
    passes = []

    def spoil(module, args):
        if torch.is_grad_enabled() and trainer.state.global_step == at_step:
            passes.append(1)
            if len(passes) == 2:  # the second micro-batch
                raise NameError("a mistake that comes again")

    trainer.model.register_forward_pre_hook(spoil)
    with pytest.raises(NameError):
        SelfHealingTrainer(trainer, HealingConfig(max_recovery_attempts=0)).train()
    assert (tmp_path / f"checkpoint-{at_step}").is_dir()
    later = made(tmp_path, kind)
    SelfHealingTrainer(later).train(resume_from_checkpoint="auto")
    assert updates(later) == STEPS
    assert same(later, clean(kind))


@pytest.mark.parametrize("kind", GENERATING)
def test_a_run_with_less_than_half_its_batch_can_be_cut_short_as_often_as_it_likes(kind, clean, tmp_path):
    for at_step in (2, 3, 4, None):  # in the first epoch: the order of a later one is in no checkpoint
        trainer = made(tmp_path, kind)
        run_short_of_memory(trainer, most_rows=2, at_step=2)
        if at_step is None:
            output = SelfHealingTrainer(trainer).train()
        else:
            trainer.add_callback(end_at(at_step))
            with pytest.raises(Preempted):
                SelfHealingTrainer(trainer).train()
    assert "healing/out_of_memory" not in output.metrics, "it was short in the first attempt alone"
    assert updates(trainer) == STEPS
    assert rewards(trainer) == rewards(clean(kind))
    assert (weights(trainer) - weights(clean(kind))).abs().max() < 1e-5
    told = read_ledger(tmp_path / "healing/ledger.jsonl").entries
    assert [entry.attempt for entry in told if entry.kind == "plan"] == [1] * 3, "freeing memory, and two halvings"
    kept = [entry for entry in told if entry.name == "batch-still-halved"]
    assert [entry.attempt for entry in kept] == [2, 3, 4]
    assert "per_device_train_batch_size 8 -> 2, accumulation 8;" in kept[-1].body["text"]
    (change,) = json.loads((tmp_path / "postmortem.json").read_text())["changes_in_force"]
    assert change["change"] == "halve_batch_size"


def test_a_checkpoint_that_is_named_is_gone_on_from_with_the_batch_of_the_arguments(tmp_path):
    trainer = made(tmp_path, "grpo")
    run_short_of_memory(trainer, most_rows=4, at_step=2)
    trainer.add_callback(end_at(3))
    with pytest.raises(Preempted):
        SelfHealingTrainer(trainer).train()
    later, sizes = made(tmp_path, "grpo"), set()
    on_training_forward(later, lambda _step, inputs, output: sizes.add(len(inputs["input_ids"])) or output)
    SelfHealingTrainer(later).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert updates(later) == STEPS
    assert sizes == {8}


@pytest.mark.parametrize("change", [{"num_generations": 2}, {"num_iterations": 2}])
def test_what_the_place_in_the_data_depends_on_is_named_where_it_was_changed(change, clean, tmp_path):
    before, now = data_facts(clean("grpo")), data_facts(made(tmp_path, "grpo", **change))
    ((name, value),) = change.items()
    assert differences(before, now) == [f"{name} is {value} and was {before[name]}"]
    assert before.keys() <= fact_names()

"""GRPO generates for several steps at once: a step that cannot be saved takes no other step's share."""

from __future__ import annotations

import pytest

from self_healing import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.fault import with_loss_times

from .rehearsed import of_trl, variety

pytestmark = pytest.mark.torch
STEPS = 8


def trained(folder, steps_per_generation, at_step):
    """Train with one batch that is NaN whenever it is run; return the output, the steps of generation and the batches."""
    import torch

    generated, batches, spoiled = [], [], []

    def reward(completions, **_):
        generated.append(trainer.state.global_step)
        return variety(completions)

    trainer = of_trl(
        folder, "GRPO", ["prompt"], {"reward_funcs": reward}, num_generations=2, max_completion_length=4,
        steps_per_generation=steps_per_generation,
    )  # fmt: skip
    trainer.args.max_steps = STEPS

    def spoil(module, args, kwargs, output):
        if not torch.is_grad_enabled():
            return None
        batch = kwargs["input_ids"].tolist()
        if trainer.state.global_step == at_step and not spoiled:
            spoiled.append(batch)
        if batch in spoiled:
            return with_loss_times(output, float("nan"))
        if len(batch) == trainer.args.per_device_train_batch_size:  # else a few rows of one that is being examined
            batches.append(str(batch))
        return None

    trainer.model.register_forward_hook(spoil, with_kwargs=True)
    return SelfHealingTrainer(trainer).train(), generated, batches


def notes(folder, name):
    entries = read_ledger(folder / "healing/ledger.jsonl").entries
    return [entry.body["text"] for entry in entries if entry.kind == "note" and entry.name == name]


@pytest.mark.parametrize("at_step", [1, 2])
def test_inside_a_generation_a_step_that_is_nan_every_time_is_left_out_with_a_note(at_step, tmp_path):
    output, generated, batches = trained(tmp_path, 4, at_step)
    assert (output.metrics["healing/skipped_steps"], output.metrics["healing/replaced_steps"]) == (1, 0)
    assert generated == [0, 4], "nothing is generated in between"
    assert len(batches) == len(set(batches)) == STEPS - 1, "no batch is learned twice"
    (told,) = notes(tmp_path, "step-left-out")
    assert told.split(":")[0] == f"step {at_step + 1} is left out"
    (found,) = notes(tmp_path, "nan-examined")
    assert "transient" not in found, "it was NaN each of the times it was run for its gradients"
    assert "in the forward pass" in found


def test_where_each_step_generates_its_own_data_other_data_take_the_place(tmp_path):
    output, generated, batches = trained(tmp_path, 1, 1)
    assert (output.metrics["healing/skipped_steps"], output.metrics["healing/replaced_steps"]) == (0, 1)
    assert len(generated) == STEPS + 1
    assert len(set(batches)) == STEPS

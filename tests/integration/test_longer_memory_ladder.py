"""Where no step can be saved, the run goes on from its last complete step with a smaller batch, or says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from self_healing import HealingConfig
from self_healing.adapters.transformers import SelfHealingTrainer
from self_healing.core.ledger import read_ledger
from self_healing.drills.faults.oom_in_packed_rows import OomInPackedRows
from self_healing.drills.tiny_training import tiny_model, tiny_trainer
from self_healing.drills.trained import updates, weights
from self_healing.patterns.cuda_memory import FIXES

pytestmark = pytest.mark.torch
STEPS = 30


def sizes(trainer):
    args = trainer.args
    return args.per_device_train_batch_size, args.gradient_accumulation_steps, trainer._train_batch_size


def make(folder, **arguments):
    given = {"max_steps": STEPS, "lr_scheduler_type": "cosine", **arguments}
    return tiny_trainer(folder, model=tiny_model(), **given)


def actions_of(folder):
    told = json.loads((folder / "postmortem.json").read_text())
    return told, [(entry["actions"], entry["failed_actions"]) for entry in told["recovery_actions"]]


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = make(tmp_path_factory.mktemp("clean"))
    trainer.train()
    return trainer


@pytest.mark.parametrize(("fits", "at_step", "halvings"), [(4, 10, 1), (4, 0, 1), (1, 10, 3)])
def test_the_run_ends_with_a_smaller_batch_and_the_same_updates(fits, at_step, halvings, clean, tmp_path):
    trainer = make(tmp_path)
    before = sizes(trainer)
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((trainer.state.global_step, len(kwargs["input_ids"]))),
        with_kwargs=True,
    )
    OomInPackedRows(at_step=at_step, most_rows=fits).plant(trainer)
    output = SelfHealingTrainer(trainer).train()
    assert updates(trainer) == STEPS == trainer.state.global_step
    after = [rows for step, rows in seen if step > at_step]
    assert set(after) == {fits}
    assert len(after) == (STEPS - at_step - 1) * 8 // fits, "as many records for each update as before"
    # The same records in the same order for every update: only the order of summation differs.
    assert (weights(trainer) - weights(clean)).abs().max() < 1e-3
    assert sizes(trainer) == before == (8, 1, 8), "the user's settings are the user's again"
    assert "get_train_dataloader" not in vars(trainer)
    told, actions = actions_of(tmp_path)
    assert [done for done, _ in actions].count(["halve_batch_size"]) == halvings
    assert told["exit_reason"] == "completed"
    assert output.metrics["healing/extra_forwards"] >= 2 * halvings, "whole, again, and with checkpointing"
    assert output.metrics["healing/recovery_attempts"] == halvings
    notes = [e.body for e in read_ledger(tmp_path / "healing/ledger.jsonl").entries if e.name == "memory-gave-up"]
    assert all("rows are packed" in note["text"] and "gradient checkpointing" in note["text"] for note in notes)
    assert len(notes) == halvings


@pytest.mark.parametrize(
    ("batch", "config", "halvings"),
    [(2, {}, 1), (6, {}, 1), (8, {"min_batch_size": 4}, 1), (4, {"max_recovery_attempts": 1}, 1)],
)
def test_what_cannot_be_halved_any_further_stops_with_advice(batch, config, halvings, tmp_path):
    import torch

    trainer = make(tmp_path, per_device_train_batch_size=batch)
    before = sizes(trainer)
    OomInPackedRows(at_step=5, most_rows=0).plant(trainer)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        SelfHealingTrainer(trainer, HealingConfig(**config)).train()
    assert any("self-healing gave up" in note for note in caught.value.__notes__)
    assert updates(trainer) == 5
    assert sizes(trainer) == before
    told, actions = actions_of(tmp_path)
    assert [done for done, _ in actions].count(["halve_batch_size"]) == halvings
    assert sum("halve_batch_size" in failed for _, failed in actions) <= 1, "what cannot be done is asked for once"
    assert actions[-1] == (["stop"], [])
    assert set(FIXES) <= set(told["advice"])
    assert told["exit_reason"] == "exception"
    assert (tmp_path / "checkpoint-5").is_dir(), "nothing of the five steps is lost"


def test_a_checkpoint_written_after_an_unfinished_step_is_of_the_last_complete_one(tmp_path):
    """With dropout and accumulation: resumed by hand, with room for the batch, it ends as if nothing had been."""
    import torch

    settings = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2, "max_steps": 10}
    made = {}
    for name in ("clean", "broken", "resumed"):
        folder = tmp_path / ("broken" if name == "resumed" else name)
        made[name] = trainer = tiny_trainer(folder, model=tiny_model(dropout=0.1), **settings)
        if name == "broken":
            passes = []

            def spoil(module, args, trainer=trainer, passes=passes):
                passes.append(trainer.state.global_step)
                if passes.count(6) >= 3:  # in the third of its four micro-batches
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

            trainer.model.register_forward_pre_hook(spoil)
            with pytest.raises(torch.OutOfMemoryError):
                SelfHealingTrainer(trainer, HealingConfig(min_batch_size=2)).train()
        else:
            trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6") if name == "resumed" else None)
    assert torch.equal(weights(made["resumed"]), weights(made["clean"]))


def test_epochs_that_are_cut_in_another_way_make_as_many_updates(tmp_path):
    """44 records make five batches of eight and eleven of four, and a recipe of three epochs is one of 15 updates."""
    trainer = make(tmp_path, max_steps=-1, num_train_epochs=3, dataloader_drop_last=True)
    trainer.train_dataset = trainer.train_dataset[:44]
    OomInPackedRows(at_step=7).plant(trainer)
    SelfHealingTrainer(trainer).train()
    assert updates(trainer) == trainer.state.global_step == 15
    assert trainer.args.max_steps == -1


@pytest.mark.parametrize("mode", ["observe", "advise"])
def test_who_only_watches_writes_no_checkpoint_and_changes_nothing(mode, tmp_path):
    import torch

    trainer = make(tmp_path)
    OomInPackedRows(at_step=5).plant(trainer)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        SelfHealingTrainer(trainer, HealingConfig(mode=mode)).train()
    assert not hasattr(caught.value, "__notes__")
    assert not list(tmp_path.glob("checkpoint-*"))
    assert actions_of(tmp_path)[0]["exit_reason"] == "exception"


def test_a_version_that_takes_the_batch_size_from_the_checkpoint_is_overruled(clean, tmp_path):
    """As transformers did up to 4.57, whatever the arguments say."""
    trainer = make(tmp_path)
    original = trainer._inner_training_loop

    def as_it_was(*args, resume_from_checkpoint=None, **kwargs):
        if resume_from_checkpoint is not None:
            state = json.loads(Path(resume_from_checkpoint, "trainer_state.json").read_text())
            trainer._train_batch_size = state["train_batch_size"]
        return original(*args, resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    trainer._inner_training_loop = as_it_was
    OomInPackedRows(at_step=10).plant(trainer)
    SelfHealingTrainer(trainer).train()
    assert (weights(trainer) - weights(clean)).abs().max() < 1e-3
    assert sizes(trainer) == (8, 1, 8)


def test_what_is_given_by_place_is_given_again_after_a_restart(tmp_path):
    trainer = make(tmp_path, max_steps=8)
    OomInPackedRows(at_step=4).plant(trainer)
    calls, original = [], trainer.train

    def train(resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        calls.append((resume_from_checkpoint, trial, ignore_keys_for_eval))
        return original(resume_from_checkpoint, trial, ignore_keys_for_eval)

    trainer.train = train
    SelfHealingTrainer(trainer).train(None, None, ["past_key_values"])
    assert calls == [(None, None, ["past_key_values"]), (str(tmp_path / "checkpoint-4"), None, ["past_key_values"])]


class SpreadOfRows:
    """A loss in which every row depends on the others, and a model that has no room for more than some rows."""

    def plant(self, trainer, most_rows):
        import torch

        def compute_loss(model, inputs, return_outputs=False, num_items_in_batch=None):
            logits = model(input_ids=inputs["input_ids"]).logits[:, :-1]
            if len(logits) > most_rows:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            losses = torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), inputs["labels"][:, 1:], reduction="none"
            )
            return losses.mean() + losses.mean(1).var(unbiased=False)

        trainer.compute_loss = compute_loss


@pytest.mark.parametrize("effect", ["time", "recipe"])
def test_a_smaller_batch_that_is_another_loss_is_called_that(effect, tmp_path):
    import torch

    trainer = make(tmp_path)
    SpreadOfRows().plant(trainer, 4)
    guarded = SelfHealingTrainer(trainer, HealingConfig(max_effect=effect))
    if effect == "time":
        with pytest.raises(torch.OutOfMemoryError):
            guarded.train()
    else:
        guarded.train()
    told, actions = actions_of(tmp_path)
    said = " ".join(entry["said"] for entry in told["recovery_actions"])
    assert (["halve_batch_size"] in [done for done, _ in actions]) == (effect == "recipe")
    assert ("the loss is another one from here on" if effect == "recipe" else "would be another loss") in said

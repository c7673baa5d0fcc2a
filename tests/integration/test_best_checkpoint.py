"""Which checkpoint is called the best one after a run has returned, and that the one so called is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.drills.fault import on_training_forward, with_loss_times
from self_healing.drills.tiny_training import tiny_trainer

from .test_returning import find_session
from .test_sick_checkpoints import at

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
BEST = {
    "eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 5, "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss", "greater_is_better": False,
}  # fmt: skip


def fail_once_at(trainer, at_step):
    """Raise once in a forward pass; return a list that says afterwards that it has."""
    failed = []

    def fail(module, args):
        if module.training and trainer.state.global_step == at_step and not failed:
            failed.append(at_step)
            raise RuntimeError("an unspecified launch failure")

    trainer.model.register_forward_pre_hook(fail)
    return failed


def worse_evaluations(trainer, when):
    """Raise the loss of evaluations by ten while a list is not empty."""

    def spoil(module, args, kwargs, output):
        if not module.training and when:
            output["loss"] = output["loss"] + 10.0
        return output

    trainer.model.register_forward_hook(spoil, with_kwargs=True)


def bests_at_steps(trainer):
    """Return a dictionary that is filled with the best checkpoint at the beginning of each step, and whether it is there."""
    from transformers import TrainerCallback

    seen = {}

    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            best = state.best_model_checkpoint
            seen.setdefault(state.global_step, []).append(
                (best and Path(best).name, best is None or Path(best).is_dir())
            )

    trainer.add_callback(Look())
    return seen


def notes(folder, name):
    lines = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    return [line["body"]["text"] for line in lines if line["kind"] == "note" and line["name"] == name]


def holds_weights_of(trainer, folder):
    from safetensors.torch import load_file

    saved = load_file(Path(folder) / "model.safetensors")
    return all(saved[name].equal(weight) for name, weight in trainer.model.state_dict().items() if name in saved)


def test_a_best_checkpoint_that_was_rotated_away_is_not_brought_back_by_name(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30, save_total_limit=1, **BEST)
    worse_evaluations(trainer, when=fail_once_at(trainer, 17))
    seen = bests_at_steps(trainer)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=12)).train()
    assert output.metrics["healing/rollbacks"] == 1
    assert seen[12] == [("checkpoint-10", True), (None, True)], "checkpoint-15 had taken its place before the return"
    assert all(is_there for bests in seen.values() for _, is_there in bests)
    (told,) = notes(tmp_path, "best-checkpoint-gone")
    assert "checkpoint-10" in told
    best = trainer.state.best_model_checkpoint
    assert Path(best).is_dir()
    assert trainer.state.best_metric > 10.0, "that of an evaluation after the return"
    assert holds_weights_of(trainer, best)


def test_the_best_of_the_checkpoints_that_are_left_takes_its_place(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=30, **{**BEST, "eval_steps": 4, "save_steps": 4})
    trainer.add_callback(delete_at(16, tmp_path / "checkpoint-12"))
    worse_evaluations(trainer, when=fail_once_at(trainer, 17))
    seen = bests_at_steps(trainer)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=12)).train()
    assert seen[12][-1] == ("checkpoint-8", True)
    (told,) = notes(tmp_path, "best-checkpoint-gone")
    assert "checkpoint-8" in told
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-8"
    assert trainer.state.best_global_step == 8
    logged = [
        entry["eval_loss"] for entry in trainer.state.log_history if entry.get("step") == 8 and "eval_loss" in entry
    ]
    assert trainer.state.best_metric == logged[0]
    assert holds_weights_of(trainer, tmp_path / "checkpoint-8")


@pytest.mark.parametrize("other", ["checkpoint-25", None])
def test_a_sick_checkpoint_does_not_become_the_result_of_a_run(other, tmp_path):
    every = 25 if other else 50
    trainer = tiny_trainer(tmp_path, max_steps=70, **{**BEST, "eval_steps": every, "save_steps": every})
    last = []
    worse_evaluations(trainer, when=last)

    def spike(step, _inputs, output):
        last.extend([step] if step == 60 else [])
        return with_loss_times(output, 30.0) if step == 49 else output

    on_training_forward(trainer, spike)
    if other is None:
        trainer.add_callback(delete_at(70, tmp_path / "checkpoint-70"))
    # One that is over by itself leaves nothing sick.
    config = HealingConfig(loss_spike_factor=3.0)
    config = config.with_hook(lambda _incident, plan, _run: plan.then(ScaleLearningRate()), "loss-spike")
    SelfHealingTrainer(trainer, config).train()
    (told,) = notes(tmp_path, "best-checkpoint-passed-over")
    assert told.startswith("checkpoint-50, the best checkpoint by what was measured, is marked sick (loss-spike")
    if other:
        assert Path(trainer.state.best_model_checkpoint).name == other
        assert f"of those that are left {other} is the best" in told
        assert holds_weights_of(trainer, tmp_path / other)
    else:
        assert "no other is left: the weights stay as they were trained last" in told
        assert not holds_weights_of(trainer, tmp_path / "checkpoint-50")


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_checkpoint_does_not_become_the_result_of_a_run_and_does_not_end_it(damage, tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=12, **{**BEST, "greater_is_better": True})

    def harm(_model):
        (session,) = find_session(trainer)
        assert session.checkpoints.disk.close(60), "it is hashed"
        path = tmp_path / "checkpoint-5" / "model.safetensors"
        if damage == "cut":
            os.truncate(path, 5000)
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"\x55")

    trainer.add_callback(at("on_step_end", 11, harm))
    SelfHealingTrainer(trainer).train()
    (told,) = notes(tmp_path, "best-checkpoint-passed-over")
    assert told.startswith("checkpoint-5, the best checkpoint by what was measured, is damaged (model.safetensors ")
    assert told.endswith("of those that are left checkpoint-10 is the best")
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-10"
    assert holds_weights_of(trainer, tmp_path / "checkpoint-10")


def delete_at(step, folder):
    """Return a callback that deletes a folder, as a rotation of other code does."""
    import shutil

    from transformers import TrainerCallback

    class Delete(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == step:
                shutil.rmtree(folder, ignore_errors=True)

        on_save = on_step_end

    return Delete()


def test_writing_an_older_state_to_disk_rotates_nothing_away(tmp_path):
    """The rotation would go by the best checkpoint that the older state knows of."""
    from transformers import TrainerCallback

    trainer = tiny_trainer(tmp_path, max_steps=19, save_total_limit=2, **BEST)

    class Saves(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 17:
                # As in trainings that take longer: the trainer goes by the times of its folders, if they differ.
                for age, step in enumerate((15, 10)):
                    os.utime(tmp_path / f"checkpoint-{step}", (1_700_000_000 - age, 1_700_000_000 - age))
                (session,) = find_session(trainer)
                said.append(session.abilities.save_checkpoint())

    said = []
    trainer.add_callback(Saves())
    seen = bests_at_steps(trainer)
    SelfHealingTrainer(trainer, HealingConfig(good_after=3, snapshot_every_steps=6)).train()
    assert said == ["checkpoint-12 was written from memory"]
    assert seen[17] == seen[18] == [("checkpoint-15", True)]
    assert holds_weights_of(trainer, trainer.state.best_model_checkpoint)

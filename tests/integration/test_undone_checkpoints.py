"""What a return has undone on disk is not gone on from, and what it will need is not deleted before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.faults.poisoned_batches import PoisonedBatches
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import same
from self_healing.snapshots.checkpoint_check import check

from .killed_training import notes, without_clocks
from .test_sick_checkpoints import terminate, terminated  # noqa: F401  # a fixture

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
SAVING = {"save_strategy": "steps", "save_steps": 5, "logging_steps": 1}


def break_weights(trainer, at_step, times):
    """Make every weight NaN before the forward pass of a step, the first times that it comes."""
    done = []

    def hook(module, _args):
        if module.training and trainer.state.global_step == at_step and len(done) < times:
            done.append(at_step)
            for parameter in module.parameters():
                parameter.data.fill_(float("nan"))

    trainer.model.register_forward_pre_hook(hook)
    return done


def terminate_at(trainer, step, is_time):
    class Terminating(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step and is_time():
                terminate()

    trainer.add_callback(Terminating())


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_restart_goes_on_from_the_run_and_not_from_what_it_has_returned_from(shared_memory, tmp_path, terminated):  # noqa: F811
    """The third return leads to before checkpoint-20, with a lower rate; it is ended before it is there again."""
    config = HealingConfig(backoff_base_s=0.0, snapshot_every_steps=4, shared_memory=shared_memory)
    trainer = tiny_trainer(tmp_path, **SAVING)
    done = break_weights(trainer, 22, times=3)
    terminate_at(trainer, 18, lambda: len(done) == 3)
    SelfHealingTrainer(trainer, config).train()
    assert trainer.state.global_step == 19
    again = tiny_trainer(tmp_path, **SAVING)
    SelfHealingTrainer(again, config).train(resume_from_checkpoint="auto")
    (told,) = notes(tmp_path, "resuming")[-1:]
    assert told == "checkpoint-19 is resumed from; passed over: checkpoint-20: the run has returned from it to step 16"
    rates = [entry["healing/lr_scale"] for entry in again.state.log_history if entry.get("step") in (19, 20)]
    assert len(rates) == 2
    assert rates[0] < rates[1] < 1.0, "what was lowered rises from where it was"
    assert not check(tmp_path / "checkpoint-20").undone, "it was written over"


def test_what_a_return_to_disk_has_undone_is_not_said_to_be_saved(tmp_path, terminated):  # noqa: F811
    """Without states in memory the second return leads to before checkpoint-30, which lies there of the steps undone."""
    config = HealingConfig(backoff_base_s=0.0, snapshot_memory_fraction=0)
    trainer = tiny_trainer(tmp_path, **SAVING)
    done = break_weights(trainer, 31, times=2)
    terminate_at(trainer, 29, lambda: len(done) == 2)
    SelfHealingTrainer(trainer, config).train()
    assert notes(tmp_path, "interrupted") == ["SIGTERM came; checkpoint-30 was written"]
    written = load_file(tmp_path / "checkpoint-30" / "model.safetensors")
    assert all(
        torch.equal(written[name], value) for name, value in trainer.model.state_dict().items() if name in written
    )


def test_after_a_return_to_disk_steps_are_logged_as_they_are(tmp_path):
    """The step that is undone was made up, with a norm of its own, before the run returned."""
    stock, trainer = (tiny_trainer(tmp_path / name, **SAVING) for name in ("stock", "ours"))
    stock.train()

    def hook(module, _args, harmed=[]):  # noqa: B006  # what it remembers
        if module.training and trainer.state.global_step == 32 and not harmed:
            harmed.append(True)
            next(module.parameters()).data.view(-1)[0] = float("nan")

    trainer.model.register_forward_pre_hook(hook)
    SelfHealingTrainer(trainer, HealingConfig(backoff_base_s=0.0, snapshot_memory_fraction=0)).train()
    assert same(trainer, stock)
    logged = [without_clocks(entry) for entry in trainer.state.log_history]
    assert logged == [without_clocks(entry) for entry in stock.state.log_history]


def test_while_a_spike_is_watched_the_last_sound_checkpoint_is_not_rotated_away(tmp_path):
    """What is held to see whether it passes may be found out to be harm, which began before the newest checkpoint."""
    trainer = tiny_trainer(tmp_path, save_total_limit=1, **SAVING)
    PoisonedBatches(at_step=27).plant(trainer)
    there: dict[int, list[str]] = {}

    class Looking(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            there.setdefault(state.global_step, sorted(path.name for path in tmp_path.glob("checkpoint-*")))

    trainer.add_callback(Looking())
    SelfHealingTrainer(trainer, HealingConfig(backoff_base_s=0.0)).train()
    assert there[27] == ["checkpoint-25"]
    assert there[31] == ["checkpoint-25", "checkpoint-30"]
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1, "what is over is rotated away"


def test_what_was_not_deleted_meanwhile_makes_room_before_the_next_one_is_written(tmp_path):
    """A disk with room for as many as the user allows, and the next one, has none for one more."""
    trainer, saves = tiny_trainer(tmp_path, save_total_limit=1, **SAVING), []
    PoisonedBatches(at_step=27).plant(trainer)
    original = trainer._save

    def _save(folder, *args):
        others = sorted(path.name for path in tmp_path.glob("checkpoint-*") if path != Path(folder))
        saves.append((Path(folder).name, others))
        return original(folder, *args)

    trainer._save = _save
    SelfHealingTrainer(trainer, HealingConfig(backoff_base_s=0.0)).train()
    *_, before, last = saves
    assert len(before[1]) > 2, "it is still watched"
    assert last == ("checkpoint-60", ["checkpoint-55"])

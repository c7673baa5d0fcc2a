"""States are a precaution: one that cannot be taken, kept or written costs the run nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from self_healing import HealingConfig, SelfHealingTrainer
from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import losses, same

from .test_returning import find_session, notes, raise_once_at, spoil_memory

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    trainer = tiny_trainer(tmp_path_factory.mktemp("clean"))
    trainer.train()
    return trainer


def cannot_be_copied(trainer, *, first, last=1000):
    """Give the model a buffer that nobody can copy between two steps, as when there is no memory for a copy."""
    import torch

    def before(module, args):
        step = int(trainer.state.global_step)
        if module.training and first <= step <= last and "nowhere" not in module._buffers:
            module.register_buffer("nowhere", torch.empty(2, device="meta"), persistent=False)
        elif module.training and step > last:
            module._buffers.pop("nowhere", None)

    trainer.model.register_forward_pre_hook(before)


def test_a_return_does_not_need_the_memory_for_the_state_that_it_leaves(clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    cannot_be_copied(trainer, first=29, last=29)
    raise_once_at(trainer, 29)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    (told,) = notes(tmp_path, "furthest-not-kept")
    assert "state of step 29 could not be set aside (NotImplementedError" in told
    assert output.metrics["healing/rollbacks"] == 1
    assert same(trainer, clean)


def test_states_that_are_there_stay_where_a_later_one_cannot_be_taken(clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    cannot_be_copied(trainer, first=35, last=44)
    raise_once_at(trainer, 42, 57)
    output = SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=10)).train()
    first, second = notes(tmp_path, "snapshot-failed")
    assert "state of step 40 could not be taken (NotImplementedError" in first
    assert "4 earlier ones are kept" in first
    assert "state of step 41 could not be taken" in second  # ten steps after that of step 31, which follows the return
    assert not notes(tmp_path, "no-snapshots")
    assert output.metrics["healing/rollbacks"] == 2
    assert output.metrics["healing/steps_lost"] == (42 - 30) + (57 - 51)
    assert same(trainer, clean)


def test_where_none_can_be_taken_again_and_again_the_run_goes_on_without(clean, tmp_path):
    trainer = tiny_trainer(tmp_path)
    cannot_be_copied(trainer, first=35)
    SelfHealingTrainer(trainer, HealingConfig(snapshot_every_steps=5)).train()
    assert len(notes(tmp_path, "snapshot-failed")) == 2
    (told,) = notes(tmp_path, "no-snapshots")
    assert "newest checkpoint on disk" in told
    assert losses(trainer) == losses(clean)


def spiking(folder):
    """A run whose loss jumps at step 50 and comes back: some of its labels are other ones."""
    trainer = tiny_trainer(folder, save_strategy="steps", save_steps=1000)

    def spoil(module, args, kwargs):
        if module.training and trainer.state.global_step in (50, 51):
            kwargs["labels"] = (kwargs["labels"] * 31 + 7) % 64
        return args, kwargs

    trainer.model.register_forward_pre_hook(spoil, with_kwargs=True)
    return trainer


@pytest.fixture(scope="module")
def spiked(tmp_path_factory):
    trainer = spiking(tmp_path_factory.mktemp("spiked"))
    trainer.train()
    return trainer


CONFIG = HealingConfig(good_after=8, snapshot_every_steps=8)


def test_a_spike_passes_also_where_no_state_can_be_secured(spiked, tmp_path):
    trainer = spiking(tmp_path)
    cannot_be_copied(trainer, first=49, last=55)
    SelfHealingTrainer(trainer, CONFIG).train()
    (told,) = notes(tmp_path, "not-secured")
    assert "NotImplementedError" in told
    assert same(trainer, spiked)


def test_what_lies_in_the_way_of_a_state_is_told_and_left_alone(spiked, tmp_path):
    for step in range(8, 56, 8):  # as runs before this one have left them, half written
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / "model.safetensors").write_bytes(b"x")
    SelfHealingTrainer(spiking(tmp_path), CONFIG).train()
    (told,) = notes(tmp_path, "not-secured")
    assert "is in the way (it was there when this training began" in told
    assert notes(tmp_path, "secured") == []
    assert [folder for folder in tmp_path.glob("checkpoint-*") if len(list(folder.iterdir())) > 1] == [
        tmp_path / "checkpoint-60"
    ]


def test_a_newer_checkpoint_of_another_run_does_not_stand_for_a_state_of_this_one(spiked, tmp_path):
    shutil.copytree(Path(spiked.args.output_dir) / "checkpoint-60", tmp_path / "checkpoint-49")
    state = tmp_path / "checkpoint-49" / "trainer_state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "global_step": 49}))
    SelfHealingTrainer(spiking(tmp_path), CONFIG).train()
    (told,) = notes(tmp_path, "secured")
    assert "was written from memory" in told


def test_a_state_that_a_full_disk_refuses_is_not_said_to_be_secured(tmp_path):
    from transformers import TrainerCallback

    class Fill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 48:
                room = os.statvfs(args.output_dir)
                (Path(args.output_dir) / "filler").write_bytes(b"x" * (room.f_bavail * room.f_bsize - 150_000))

    try:
        with small_disk(tmp_path / "disk", 3_000_000):
            trainer = spiking(tmp_path / "disk")
            trainer.add_callback(Fill())
            SelfHealingTrainer(trainer, CONFIG).train()
            (told,) = notes(tmp_path / "disk", "not-secured")
            assert notes(tmp_path / "disk", "secured") == []
    except CannotMountError as error:
        pytest.skip(str(error))
    assert "it could not be written: " in told


def test_an_older_good_state_is_secured_where_the_newest_is_damaged(spiked, tmp_path):
    from transformers import TrainerCallback

    trainer = spiking(tmp_path)

    class Spoil(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 50:
                keeper = find_session(trainer)[0].rollback.keeper
                spoil_memory(keeper, keeper.newest_good().key)

    trainer.add_callback(Spoil())
    SelfHealingTrainer(trainer, CONFIG).train()
    (damaged,) = notes(tmp_path, "state-damaged")
    (told,) = notes(tmp_path, "secured")
    assert "was written from memory" in told
    assert min(int(each.name.split("-")[1]) for each in tmp_path.glob("checkpoint-*")) < int(
        damaged.split("-step-")[1].split()[0]
    )
    assert same(trainer, spiked)

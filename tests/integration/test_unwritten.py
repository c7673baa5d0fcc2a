"""A run whose disk refuses every checkpoint says so at its end, and leaves its newest state where it can be gone on from."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

import pytest

from self_healing import Preempted, SelfHealingTrainer
from self_healing.adapters.disk_trouble import in_words, is_trouble_with_the_disk
from self_healing.core.ledger import read_ledger
from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.drills.trained import updates, weights
from self_healing.report.postmortem import read_postmortem
from self_healing.snapshots.manifest import read_manifest
from self_healing.snapshots.resume import choose

from .test_trainer_interrupts import send_at

pytestmark = pytest.mark.torch

SAVING = {"max_steps": 12, "save_strategy": "steps", "save_steps": 4}


@pytest.fixture
def full_disk(tmp_path):
    """Return a folder on a disk that has room for a ledger and for no checkpoint, and what makes room there."""
    try:
        with small_disk(tmp_path / "disk", 1_000_000):
            filler = tmp_path / "disk" / "filler"
            filler.write_bytes(b"x" * 850_000)
            yield tmp_path / "disk" / "run", filler
    except CannotMountError as error:
        pytest.skip(str(error))


def test_a_run_that_could_save_nothing_says_so_and_can_be_gone_on_with(full_disk, tmp_path):
    folder, filler = full_disk
    metrics = SelfHealingTrainer(tiny_trainer(folder, **SAVING)).train().metrics
    assert metrics["healing/checkpoints_not_written"] == 3
    assert not list(folder.glob("checkpoint-*"))
    told = read_postmortem(folder / "postmortem.json")
    assert told.exit_reason == "completed"
    assert told.final_metrics["healing/checkpoints_not_written"] == 3
    assert (
        "3 checkpoints could not be written (of steps 4, 8, 12), and none of this training is on disk" in told.advice[0]
    )
    assert (
        'is left in shared memory, for a day at most: make room, and train(resume_from_checkpoint="auto")'
        in (told.advice[0])
    )
    assert [action["outcome"] for action in told.recovery_actions] == ["failed"] * 3
    assert [action["verdict"] for action in told.recovery_actions] == [None] * 3
    assert told.recovery_actions[0]["failed_actions"] == ["backoff"]

    filler.unlink()
    again = tiny_trainer(folder, **SAVING)
    SelfHealingTrainer(again).train(resume_from_checkpoint="auto")
    entries = [json.loads(line) for line in (folder / "healing" / "ledger.jsonl").read_text().splitlines()]
    assert any("from shared memory" in each["body"].get("text", "") for each in entries if each["name"] == "resuming")
    assert (folder / "checkpoint-12").is_dir()
    clean = tiny_trainer(tmp_path / "clean", **SAVING)
    clean.train()
    assert updates(again) == updates(clean)
    assert (weights(again) == weights(clean)).all()


def test_a_checkpoint_that_is_missing_between_others_is_told_and_no_state_is_kept(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint-4").symlink_to("a scratch disk that is gone")
    try:
        with small_disk(folder / "checkpoint-8", 50_000):
            SelfHealingTrainer(tiny_trainer(folder, **SAVING)).train()
    except CannotMountError as error:
        pytest.skip(str(error))
    (advice,) = read_postmortem(folder / "postmortem.json").advice
    assert "2 checkpoints could not be written (of steps 4, 8), and the newest on disk is checkpoint-12" in advice
    assert (folder / "checkpoint-4").is_symlink()
    assert "shared memory" not in advice


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize(("what", "note"), [("push", "push-given-up"), ("export", "after-save-failed")])
def test_what_the_disk_refuses_after_a_checkpoint_does_not_cost_the_checkpoint(what, note, is_used, tmp_path):
    if is_used:  # older checkpoints are written over
        tiny_trainer(tmp_path, **SAVING, seed=7).train()
        for folder in tmp_path.glob("checkpoint-*"):
            os.utime(folder, (1_700_000_000, 1_700_000_000))
    trainer = tiny_trainer(tmp_path, **SAVING, save_total_limit=1)
    if what == "push":  # for which a trainer copies the weights
        trainer.args.push_to_hub, trainer.push_in_progress = True, None
        (tmp_path / "model.safetensors").symlink_to("/dev/full")
    else:
        save = trainer._save_checkpoint

        def and_export(*args):
            save(*args)
            Path("/dev/full").write_bytes(b"x")

        trainer._save_checkpoint = and_export
    SelfHealingTrainer(trainer).train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-12"]
    assert read_manifest(tmp_path / "checkpoint-12").verdict.condition == "intact"
    told = [entry for entry in read_ledger(tmp_path / "healing" / "ledger.jsonl").entries if entry.name == note]
    assert ["No space left on device" in entry.body["text"] for entry in told] == [True] * 3
    assert "could not be written" not in str(read_postmortem(tmp_path / "postmortem.json").advice)


def test_what_torch_says_of_a_full_disk_is_told_as_one():
    error = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")
    assert is_trouble_with_the_disk(error)
    assert in_words(error).startswith("the disk is full or refuses to be written to")
    assert in_words(OSError(28, "No space left on device")) == "OSError: [Errno 28] No space left on device"


def test_what_safetensors_says_of_a_file_that_may_not_grow_is_trouble_with_the_disk(tmp_path):
    import torch
    from safetensors.torch import save_file

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(Exception, match="os error") as refused:
            save_file({"weight": torch.zeros(1 << 16)}, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not isinstance(refused.value, OSError)
    assert is_trouble_with_the_disk(refused.value)
    assert not is_trouble_with_the_disk(RuntimeError("no such thing (os error 2)"))


def test_an_older_checkpoint_that_could_only_be_written_over_in_part_is_resumed_from_no_longer(tmp_path):
    """It had no manifest: each of its files is whole, and the weights are another run's than the optimizer."""
    tiny_trainer(tmp_path, **{**SAVING, "max_steps": 4}).train()
    trainer = tiny_trainer(tmp_path, **{**SAVING, "max_steps": 4}, seed=7)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "checkpoint-4" / "model.safetensors").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, limits[1]))  # of the optimizer there is twice as much
    try:
        SelfHealingTrainer(trainer).train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (passed,) = choose(tmp_path).passed_over
    assert passed.why.startswith("it is marked sick: it was being written over, and that has not come to its end")


def test_a_run_that_is_asked_to_end_and_cannot_be_saved_does_not_say_that_it_is(full_disk):
    folder, _ = full_disk
    trainer = tiny_trainer(folder, **SAVING)
    send_at(trainer, 6, signal.SIGTERM)
    with pytest.raises(Preempted, match=r"at step 7, and this step is not on disk: .* the newest state that there is"):
        SelfHealingTrainer(trainer).train()
    (advice,) = read_postmortem(folder / "postmortem.json").advice
    assert "2 checkpoints could not be written (of steps 4, 7)" in advice


def test_a_manifest_that_is_refused_to_the_last_is_told_in_the_ledger_and_costs_nothing(tmp_path):
    (tmp_path / "run" / "checkpoint-4" / "healing_manifest.json").mkdir(parents=True)  # no file takes its place
    trainer = tiny_trainer(tmp_path / "run", **SAVING)
    SelfHealingTrainer(trainer).train()
    assert trainer.state.global_step == 12
    told = [each for each in read_ledger(tmp_path / "run/healing/ledger.jsonl").entries if each.kind == "note"]
    said, *_ = (each.body["text"] for each in told if each.name == "manifest-not-written")
    assert said.startswith("checkpoint-4: it cannot be hashed, or its manifest not be written: ")
    assert "Is a directory" in said
    assert read_manifest(tmp_path / "run/checkpoint-12").files

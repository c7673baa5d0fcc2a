"""Checkpoints of a real Trainer: hashed beside the training, judged, and resumed from only where they can be trusted."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from self_healing.adapters.wrapping import Wrapping
from self_healing.drills.tiny_training import tiny_trainer
from self_healing.snapshots.checkpoint_check import check
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import FILE_NAME, describe, promote, read_manifest, write_manifest
from self_healing.snapshots.resume import choose
from self_healing.snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict
from self_healing.supervisor.slower_checkpoint import make_slower

pytestmark = pytest.mark.torch

STEPS = 40
GOOD = StateVerdict(Condition.GOOD, "it has proved itself")


def followed(trainer):
    """Have a trainer's checkpoints followed, as an adapter does it."""
    from pathlib import Path

    from transformers import TrainerCallback

    tier = DiskTier()

    def around_save(original):
        def _save_checkpoint(*args, **kwargs):
            with tier.saving():
                return original(*args, **kwargs)

        return _save_checkpoint

    Wrapping().wrap(trainer, "_save_checkpoint", around_save)

    class Follow(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            tier.observed(state.global_step, is_healthy=True)

        def on_save(self, args, state, control, **kwargs):
            step = state.global_step
            tier.saved(Path(args.output_dir) / f"checkpoint-{step}", tier.judged(step, is_finite=True))

        def on_train_end(self, args, state, control, **kwargs):
            assert tier.close(60)

    trainer.add_callback(Follow())
    return tier


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train 40 steps with three checkpoints kept of four; the folder is copied by whoever changes it."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = tiny_trainer(folder, max_steps=STEPS, save_strategy="steps", save_steps=10, save_total_limit=3)
    followed(trainer)
    trainer.train()
    return folder, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def began_at(steps):
    """Return a callback that notes the step at which a training begins."""
    from transformers import TrainerCallback

    class Begins(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    return Begins()


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def test_every_checkpoint_that_is_left_has_a_manifest_that_agrees_with_it(run):
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-20", "checkpoint-30", "checkpoint-40"]
    for folder in run.glob("checkpoint-*"):
        manifest = read_manifest(folder)
        assert manifest.verdict.condition is Condition.INTACT
        assert {path.name for path in folder.iterdir()} == {*manifest.files, FILE_NAME}
    chosen = choose(run, finite=True)
    assert (chosen.step, chosen.checked.verified, chosen.passed_over) == (40, True, ())


def test_with_a_flipped_bit_in_the_newest_the_older_one_is_resumed_from_to_the_same_end(run, trained):
    flip_bit(run / "checkpoint-40" / "model.safetensors")
    chosen = choose(run)
    assert chosen.path == run / "checkpoint-30"
    assert [str(passed) for passed in chosen.passed_over] == [
        "checkpoint-40: model.safetensors is damaged: its checksum is not the one written down"
    ]
    assert (run / "checkpoint-40").is_dir()
    resumed = tiny_trainer(run, max_steps=STEPS)
    resumed.train(resume_from_checkpoint=str(chosen.path))
    assert all((a == b).all() for a, b in zip(resumed.model.parameters(), trained[1], strict=True))


@pytest.mark.parametrize(
    "harm", ["truncated", "no optimizer", "no scheduler", "sick", "not finite", "save interrupted"]
)
def test_what_a_stock_trainer_would_resume_from_or_die_of_is_passed_over(harm, run):
    newest = run / "checkpoint-40"
    if harm == "truncated":
        os.truncate(newest / "model.safetensors", 5000)
    elif harm == "sick":
        promote(newest, StateVerdict(Condition.SICK, "loss-divergence began at step 35"))
    elif harm == "not finite":
        from safetensors.torch import load_file, save_file

        (newest / FILE_NAME).unlink()
        tensors = load_file(newest / "model.safetensors")
        tensors["model.norm.weight"][0] = float("nan")
        save_file(tensors, newest / "model.safetensors", metadata={"format": "pt"})
    elif harm == "save interrupted":  # as a kill in the middle leaves it: the state is written last
        for name in (FILE_NAME, "trainer_state.json", "rng_state.pth", "scheduler.pt"):
            (newest / name).unlink()
    else:
        (newest / f"{harm.removeprefix('no ')}.pt").unlink()
    chosen = choose(run, finite=True)
    assert chosen.step == 30
    (passed,) = chosen.passed_over
    said = {
        "truncated": "model.safetensors has 5000 bytes",
        "sick": "it is marked sick: loss-divergence began at step 35",
        "not finite": "holds values that are not finite: model.norm.weight",
        "no optimizer": "optimizer.pt is missing: training would go on with a fresh optimizer",
        "no scheduler": "scheduler.pt is missing: training would go on with a fresh learning-rate schedule",
        "save interrupted": "trainer_state.json is missing",
    }
    assert said[harm] in passed.why


def test_what_a_stock_trainer_has_written_over_is_resumed_from_whatever_was_thought_of_it(run):
    promote(run / "checkpoint-40", StateVerdict(Condition.SICK, "loss-divergence began at step 35"))
    tiny_trainer(run, max_steps=STEPS, save_strategy="steps", save_steps=10, seed=7).train()
    chosen = choose(run, finite=True)
    assert (chosen.step, chosen.passed_over, chosen.checked.verified) == (40, (), False)
    assert "its manifest is of older files" in str(chosen)


def test_a_late_verdict_does_not_make_the_trainer_delete_the_wrong_checkpoint(run):
    from transformers.trainer_utils import rotate_checkpoints

    for age, step in enumerate((40, 30, 20)):
        os.utime(run / f"checkpoint-{step}", (1_700_000_000 - 100 * age,) * 2)
    assert promote(run / "checkpoint-20", StateVerdict(Condition.GOOD, "late"))
    rotate_checkpoints(output_dir=str(run), save_total_limit=2, use_mtime=True)
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-30", "checkpoint-40"]


def test_with_a_save_at_each_step_and_one_kept_the_one_left_is_verified(tmp_path):
    trainer = tiny_trainer(tmp_path, max_steps=15, save_strategy="steps", save_steps=1, save_total_limit=1)
    followed(trainer)
    trainer.train()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-15"]
    assert choose(tmp_path).checked.verified


def test_adapters_and_models_alone_are_known(tmp_path):
    from peft import LoraConfig, get_peft_model

    from self_healing.drills.tiny_training import tiny_model

    model = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    trainer = tiny_trainer(tmp_path, model=model, max_steps=2, save_strategy="steps", save_steps=2)
    followed(trainer)
    trainer.train()
    assert "adapter_model.safetensors" in read_manifest(tmp_path / "checkpoint-2").files
    assert choose(tmp_path, finite=True).checked.verified
    alone = tmp_path / "alone"
    trainer = tiny_trainer(alone, max_steps=2, save_strategy="steps", save_steps=2, save_only_model=True)
    followed(trainer)
    trainer.train()
    assert "fresh optimizer" in choose(alone).passed_over[0].why
    assert choose(alone, model_only=True).checked.verified


def test_sharded_weights_of_a_real_save_are_known(run):
    from self_healing.drills.tiny_training import tiny_model

    newest = run / "checkpoint-40"
    (newest / "model.safetensors").unlink()
    (newest / FILE_NAME).unlink()
    tiny_model().save_pretrained(newest, max_shard_size="50KB")
    shards = sorted(set(json.loads((newest / "model.safetensors.index.json").read_text())["weight_map"].values()))
    assert len(shards) > 1
    assert choose(run).step == 40
    (newest / shards[-1]).unlink()
    chosen = choose(run)
    assert chosen.step == 30
    assert f"{shards[-1]} is missing" in chosen.passed_over[0].why


@pytest.mark.parametrize("wanted", ["auto", True])
def test_a_guarded_training_resumes_from_what_can_be_trusted_and_says_so(wanted, run, trained):
    import torch

    from self_healing import SelfHealingTrainer
    from self_healing.core.ledger import read_ledger

    flip_bit(run / "checkpoint-40" / "model.safetensors")
    (run / "checkpoint-30" / "optimizer.pt").unlink()
    trainer = tiny_trainer(run, max_steps=STEPS, save_strategy="steps", save_steps=10)
    SelfHealingTrainer(trainer).train(resume_from_checkpoint=wanted)
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), trained[1], strict=True))
    (told,) = [e.body["text"] for e in read_ledger(run / "healing" / "ledger.jsonl").entries if e.name == "resuming"]
    assert told.startswith("checkpoint-20 is resumed from")
    assert "checkpoint-40" in told
    assert "optimizer.pt" in told


def test_a_rate_that_is_a_number_of_numpy_keeps_no_run_from_going_on(tmp_path):
    import numpy as np
    import torch

    from self_healing import SelfHealingTrainer

    def trained(folder, steps, resume=None):
        trainer = tiny_trainer(folder, max_steps=steps, save_strategy="steps", save_steps=4)
        trainer.create_optimizer()
        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: np.cos(step / 100))
        SelfHealingTrainer(trainer).train(resume_from_checkpoint=resume)
        return list(trainer.model.parameters())

    trained(tmp_path / "run", 4)
    resumed, clean = trained(tmp_path / "run", 6, "auto"), trained(tmp_path / "clean", 6)
    assert all(torch.equal(a, b) for a, b in zip(resumed, clean, strict=True))


@pytest.mark.parametrize("is_hashed", [True, False])
def test_a_file_that_torch_refuses_to_load_is_said_in_our_words_or_passed_over(is_hashed, run):
    import torch

    from self_healing import ConfigError, SelfHealingTrainer

    newest = run / "checkpoint-40"
    torch.save({"state": Wrapping()}, newest / "optimizer.pt")
    trainer = SelfHealingTrainer(tiny_trainer(run, max_steps=STEPS + 1))
    refused = r"cannot be resumed from: optimizer\.pt was not unpickled, for it holds more .* Name another"
    if is_hashed:
        write_manifest(newest, describe(newest, NOT_JUDGED))
        with pytest.raises(ConfigError, match=refused):
            trainer.train(resume_from_checkpoint="auto")
    else:
        (newest / FILE_NAME).unlink()
        with pytest.raises(ConfigError, match=refused):
            trainer.train(resume_from_checkpoint=str(newest))
        assert choose(run, finite=True).step == 30


def test_where_there_is_no_checkpoint_a_guarded_training_starts_from_scratch(tmp_path):
    from self_healing import ConfigError, SelfHealingTrainer

    trainer = tiny_trainer(tmp_path, max_steps=3)
    assert SelfHealingTrainer(trainer).train(resume_from_checkpoint=True).global_step == 3
    with pytest.raises(ConfigError, match="cannot be resumed from"):
        SelfHealingTrainer(trainer).train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))


@pytest.mark.parametrize(("mode", "wanted"), [("advise", "auto"), ("observe", True), ("off", "auto"), ("off", True)])
def test_a_training_that_heals_nothing_resumes_from_the_same_checkpoint_and_begins_where_there_is_none(
    mode, wanted, run, tmp_path, caplog
):
    from self_healing import HealingConfig, SelfHealingTrainer
    from self_healing.core.ledger import read_ledger

    promote(run / "checkpoint-40", StateVerdict(Condition.SICK, "loss-divergence began at step 35"))
    trainer = tiny_trainer(run, max_steps=32)
    began = []
    trainer.add_callback(began_at(began))
    SelfHealingTrainer(trainer, HealingConfig(mode=mode)).train(resume_from_checkpoint=wanted)
    empty = tiny_trainer(tmp_path / "empty", max_steps=1)
    empty.add_callback(began_at(began))
    SelfHealingTrainer(empty, HealingConfig(mode=mode)).train(wanted)  # by place, too
    assert began == [30, 0]
    told = "checkpoint-30 is resumed from; passed over: checkpoint-40: it is marked sick"
    if mode == "off":
        assert not (run / "healing").exists()
        assert any(record.getMessage().startswith(told) for record in caplog.records)
    else:
        entries = read_ledger(run / "healing" / "ledger.jsonl").entries
        assert next(e.body["text"] for e in entries if e.name == "resuming").startswith(told)


def test_a_copy_with_a_lower_rate_has_a_manifest_of_its_own_with_the_verdict_of_the_original(run):
    source, copy = run / "checkpoint-40", run / "slower" / "checkpoint-40"
    promote(source, GOOD)
    before = read_manifest(source)
    make_slower(source, copy, 0.5, [sys.executable])
    told, found = read_manifest(copy), check(copy)
    assert (found.problems, found.verified, told.verdict) == ((), True, GOOD)
    assert read_manifest(source) == before
    assert {name for name in before.files if before.files[name] != told.files[name]} == {"optimizer.pt", "scheduler.pt"}

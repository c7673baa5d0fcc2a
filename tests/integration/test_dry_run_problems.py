"""What a rehearsal finds wrong is in its report, and the trainer is restored all the same."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest

from self_healing.adapters.rehearsal.dry_run import dry_run
from self_healing.drills.tiny_training import records

from . import rehearsed

quick_collections = rehearsed.quick_collections
fails, make_default, mask, names = rehearsed.fails, rehearsed.make_default, rehearsed.mask, rehearsed.names

pytestmark = pytest.mark.torch


def test_a_bad_record_is_named(tmp_path):
    def break_it(trainer):
        for key in ("input_ids", "labels", "attention_mask"):
            trainer.train_dataset[5][key] = [*trainer.train_dataset[5][key], 1]
        trainer.train_dataset[5]["input_ids"][3] = 9999

    report = fails(tmp_path, break_it=break_it, per_device_train_batch_size=1)
    assert not report.ok
    assert names(report) == ["token-or-label-out-of-range"]
    assert "training step 1, records 5" in report.problems[0].where
    assert "Resize the embeddings" in report.problems[0].hint
    ragged = fails(tmp_path, break_it=break_it)
    assert names(ragged) == ["ragged-batch"]
    assert "collating train records 5" in ragged.problems[0].where


def test_a_record_that_cannot_be_read_is_named_and_the_rest_is_rehearsed(tmp_path):
    import torch

    class Broken(torch.utils.data.Dataset):
        rows = records(40, seed=2)

        def __len__(self):
            return 40

        def __getitem__(self, place):
            if place == 11:
                raise KeyError("text")
            return self.rows[place]

    report = fails(tmp_path, break_it=lambda trainer: setattr(trainer, "train_dataset", Broken()))
    assert [problem.where.split(" (")[0] for problem in report.problems] == ["reading train record 11"]
    assert not report.ok
    assert report.steps == 2


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x16 and 8x16)"), "shapes-do-not-fit"),
        (ValueError("Cannot handle batch sizes > 1 if no padding token is defined."), "pad-token-missing"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB."), "gpu-out-of-memory"),
        (ZeroDivisionError("mine"), "ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("call", [1, 4], ids=["first-step", "second-step"])
def test_a_model_that_raises_is_a_problem_not_an_exception(error, name, call, tmp_path):
    def break_it(trainer):
        calls = []

        def hook(*_):
            calls.append(1)
            if len(calls) == call:
                raise error

        trainer.model.register_forward_hook(hook)

    report = fails(tmp_path, break_it=break_it, gradient_accumulation_steps=2)
    assert names(report) == [name]
    assert not report.ok
    assert report.problems[0].where.startswith(f"training step {1 if call == 1 else 2}")
    assert report.checkpoint_bytes, "the save is rehearsed all the same"


def spoil_loss(factor):
    def break_it(trainer):
        def hook(_module, _args, output):
            output["loss"] = output["loss"] * factor

        trainer.model.register_forward_hook(hook)

    return break_it


def freeze(trainer):
    def hook(_module, _args, output):
        output["loss"] = output["loss"].detach().requires_grad_() * 1.0

    trainer.model.register_forward_hook(hook)


@pytest.mark.parametrize(
    ("break_it", "name", "arguments"),
    [
        (spoil_loss(math.nan), "loss-not-finite", {}),
        (spoil_loss(0.0), "loss-exactly-zero", {}),
        (mask, "labels-masked", {}),
        (freeze, "no-gradient", {}),
        (lambda _: None, "learning-rate-zero", {"learning_rate": 0.0}),
    ],
    ids=["nan", "zero", "masked", "no-gradient", "no-rate"],
)
def test_a_run_that_would_learn_nothing_is_noticed(break_it, name, arguments, tmp_path):
    report = fails(tmp_path, break_it=break_it, **arguments)
    assert name in names(report)
    assert not report.ok


def test_an_evaluation_that_is_not_finite_is_a_note(tmp_path):
    def break_it(trainer):
        def hook(module, _args, output):
            if not module.training:
                output["loss"] = output["loss"] * math.nan

        trainer.model.register_forward_hook(hook)

    report = fails(tmp_path, break_it=break_it)
    assert names(report) == ["eval-not-finite"]
    assert report.ok


def test_few_records_and_data_that_can_be_read_only_once_are_notes(tmp_path):
    import torch

    few = fails(tmp_path, break_it=lambda trainer: setattr(trainer, "train_dataset", records(3, seed=1)))
    assert names(few) == ["few-records"]
    assert few.ok
    assert few.steps == 2

    class Once(torch.utils.data.IterableDataset):
        def __init__(self):
            self.rows = iter(records(80, seed=2))

        def __iter__(self):
            return self.rows

    trainer = make_default(tmp_path)
    trainer.train_dataset = Once()
    report = dry_run(trainer)
    assert names(report) == ["read-once"]
    assert report.steps == 0
    assert len(list(trainer.train_dataset)) == 80, "not one record was taken"


def test_a_disk_that_is_full_or_closed_is_noticed(tmp_path, monkeypatch):
    import torch

    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=False, capture_output=True
    )
    if mounted.returncode == 0:
        try:
            report = fails(folder, break_it=lambda _: None, save_strategy="steps")
        finally:
            subprocess.run(["umount", folder], check=True)
        assert names(report)[0] == "disk-full", str(report)
        assert not report.ok
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    report = fails(tmp_path / "closed", break_it=lambda _: None)
    assert names(report) == ["permission-denied"]
    assert report.ok, "nothing would be saved in this run"
    assert not (tmp_path / "closed").exists() or not list((tmp_path / "closed").iterdir())


def test_a_checkpoint_that_reads_back_otherwise_is_noticed_and_folders_are_not_left_behind(tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    def break_it(trainer):
        original = trainer.save_model

        def save_model(folder, **kwargs):
            original(folder, **kwargs)
            path = Path(folder) / "model.safetensors"
            held = {name: values.clone() for name, values in load_file(path).items()}
            held["model.norm.weight"][3] += 1.0
            save_file(held, path)

        trainer.save_model = save_model
        shutil.rmtree(trainer.args.output_dir)

    report = fails(tmp_path / "new" / "deep", break_it=break_it, save_strategy="steps")
    assert ["model.norm.weight is not what was saved" in problem.what for problem in report.problems] == [True]
    assert not report.ok
    assert list(tmp_path.iterdir()) == [tmp_path / "new"], "which the trainer had made itself"
    assert list((tmp_path / "new").iterdir()) == []

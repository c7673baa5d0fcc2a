"""From what a script is told to go on: real checkpoints of real frameworks, damaged in the ways that crashes damage them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from self_healing.drills.disk_faults import cut_short, flip_bit
from self_healing.snapshots.manifest import describe, keep_off, promote, write_manifest
from self_healing.snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict
from self_healing.supervisor.checkpoints import newest_sound, written

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A stock training that has saved after 4, 8 and 12 steps."""
    from self_healing.drills.tiny_training import tiny_trainer

    folder = tmp_path_factory.mktemp("trained")
    tiny_trainer(folder, max_steps=12, save_strategy="steps", save_steps=4, logging_steps=2).train()
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, written 300, 200 and 100 seconds ago."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    for step in (4, 8, 12):
        aged(folder / f"checkpoint-{step}", 400 - 25 * step)
    return folder


def aged(path, seconds):
    """Let a checkpoint have been written some time ago."""
    then = time.time() - seconds
    for each in (path, *path.rglob("*")):
        os.utime(each, (then, then))


def name(found):
    return found.path.name if found.path is not None else None


def test_what_the_run_has_gone_on_from_before_is_taken_for_want_of_another(run):
    keep_off(run / "checkpoint-12", sick=None, over=None, undone="the run has returned from it to step 6")
    found = newest_sound(run)
    assert (found.path, found.passed_over) == (
        run / "checkpoint-8",
        ("checkpoint-12: the run has returned from it to step 6",),
    )
    for step in (4, 8):
        promote(run / f"checkpoint-{step}", StateVerdict(Condition.SICK, "loss-spike began at step 3"))
    assert newest_sound(run).path == run / "checkpoint-12"


def test_the_newest_is_taken(run):
    found = newest_sound(run)
    assert (found.path, found.passed_over) == (run / "checkpoint-12", ())
    assert str(found) == f"{run / 'checkpoint-12'} is gone on from"


def test_what_was_written_after_the_first_sign_of_trouble_is_not(run):
    found = newest_sound(run, time.time() - 150)
    assert name(found) == "checkpoint-8"
    assert found.passed_over == ("checkpoint-12: it was written after the first sign of trouble",)
    assert name(newest_sound(run, time.time() - 350)) is None


def test_our_own_files_are_written_later_and_do_not_count(run):
    folder = run / "checkpoint-12"
    write_manifest(folder, describe(folder, NOT_JUDGED))
    assert name(newest_sound(run, time.time() - 50)) == "checkpoint-12"


def test_what_another_job_has_left_is_not(run):
    there = written(run)
    found = newest_sound(run, older=there)
    assert name(found) is None
    assert found.passed_over[0] == "checkpoint-12: it is older than this job"
    aged(run / "checkpoint-8", 3600)  # written anew, after the clock was set back
    assert name(newest_sound(run, older=there)) == "checkpoint-8"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing"),
        (lambda folder: cut_short(folder / "model.safetensors"), "model.safetensors"),
        (lambda folder: cut_short(folder / "optimizer.pt"), "optimizer.pt is damaged"),
        (lambda folder: flip_bit(folder / "optimizer.pt"), "optimizer.pt is damaged"),
        (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt is missing"),
        (lambda folder: shutil.rmtree(folder) or folder.mkdir(), "trainer_state.json is missing"),
    ],
    ids=["killed before the end", "weights cut", "optimizer cut", "a bit flipped", "no optimizer", "empty"],
)
def test_one_that_is_not_whole_is_passed_over(run, damage, why):
    damage(run / "checkpoint-12")
    found = newest_sound(run)
    assert name(found) == "checkpoint-8"
    (said,) = found.passed_over
    assert said.startswith("checkpoint-12: ")
    assert why in said


def test_a_flipped_bit_in_the_weights_is_found_by_the_manifest(run):
    folder = run / "checkpoint-12"
    write_manifest(folder, describe(folder, NOT_JUDGED))
    flip_bit(folder / "model.safetensors")
    assert name(newest_sound(run)) == "checkpoint-8"


def test_one_that_is_marked_sick_is_passed_over(run):
    promote(run / "checkpoint-12", StateVerdict(Condition.SICK, "loss-divergence began at step 9"))
    found = newest_sound(run)
    assert name(found) == "checkpoint-8"
    assert "marked sick: loss-divergence began at step 9" in found.passed_over[0]


@pytest.mark.parametrize(("key", "value"), [("loss", math.nan), ("grad_norm", math.inf), ("loss", "nan")])
def test_one_whose_log_ends_with_no_number_is_passed_over(run, key, value):
    path = run / "checkpoint-12" / "trainer_state.json"
    state = json.loads(path.read_text())
    state["log_history"][-1][key] = value
    path.write_text(json.dumps(state))
    found = newest_sound(run)
    assert name(found) == "checkpoint-8"
    assert f"its log ends with {key} = " in found.passed_over[0]


def test_one_that_never_got_its_name_is_none(run):
    newest, *others = sorted(run.glob("checkpoint-*"))
    newest.rename(run / f".unfinished-{newest.name}-7")
    for other in others:
        shutil.rmtree(other)
    found = newest_sound(run)
    assert found.path is None
    assert "it is called unfinished" in str(found)


def test_nothing_is_touched(run):
    cut_short(run / "checkpoint-12" / "optimizer.pt")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(run.rglob("*"))}
    newest_sound(run)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(run.rglob("*"))} == before


def test_an_empty_a_missing_and_an_unreadable_folder(tmp_path):
    assert newest_sound(tmp_path) == (None, ())
    assert newest_sound(tmp_path / "nowhere") == (None, ())
    (tmp_path / "file").write_text("")
    found = newest_sound(tmp_path / "file")
    assert found.path is None
    assert "cannot be listed" in found.passed_over[0]


def test_checkpoints_of_the_folder_itself_come_before_those_of_others_in_it(run):
    shutil.copytree(run / "checkpoint-12", run / "earlier stage" / "checkpoint-99")
    assert newest_sound(run).path == run / "checkpoint-12"


def test_of_two_stages_the_one_that_was_last_written_to_counts(run, tmp_path):
    both = tmp_path / "both"
    for stage in ("first", "second"):
        shutil.copytree(run, both / stage)
    shutil.rmtree(both / "second" / "checkpoint-12")
    aged(both / "second" / "checkpoint-8", 5)
    assert newest_sound(both).path == both / "second" / "checkpoint-8"


def test_a_checkpoint_of_another_kind_lies_where_a_script_has_put_it(tmp_path):
    """A script of its own: one file for each epoch, the last one cut off by a kill."""
    import torch

    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for epoch in range(3):
        torch.save({"model": torch.zeros(100), "epoch": epoch}, folder / f"epoch_{epoch}.pt")
        aged(folder / f"epoch_{epoch}.pt", 100 - 10 * epoch)
    torch.save({"lr": 1.0}, folder / "optimizer.pt")
    assert newest_sound(tmp_path).path == folder / "epoch_2.pt"
    cut_short(folder / "epoch_2.pt")
    found = newest_sound(tmp_path)
    assert found.path == folder / "epoch_1.pt"
    assert "epoch_2.pt is damaged" in found.passed_over[0]
    assert newest_sound(tmp_path, time.time() - 95).path == folder / "epoch_0.pt"


def test_a_folder_that_only_has_the_name_of_a_trainers_is_judged_by_its_files(tmp_path):
    import torch

    for step in (5, 10):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        torch.save({"step": step}, folder / "state.pt")
    assert newest_sound(tmp_path).path == tmp_path / "checkpoint-10"
    whole = (tmp_path / "checkpoint-10" / "state.pt").read_bytes()
    (tmp_path / "checkpoint-10" / "state.pt").write_bytes(whole[: len(whole) // 2])
    found = newest_sound(tmp_path)
    assert found.path == tmp_path / "checkpoint-5"
    assert found.passed_over[0].startswith("checkpoint-10: ")
    (tmp_path / "checkpoint-15").mkdir()
    assert newest_sound(tmp_path).path == tmp_path / "checkpoint-5"


def test_states_of_accelerate_are_folders_as_a_whole(tmp_path):
    from accelerate import Accelerator
    from torch import nn, optim

    accelerator = Accelerator(cpu=True)
    model = nn.Linear(8, 8)
    model, optimizer = accelerator.prepare(model, optim.AdamW(model.parameters()))
    for epoch in range(2):
        accelerator.save_state(str(tmp_path / f"epoch_{epoch}"))
        aged(tmp_path / f"epoch_{epoch}", 100 - 10 * epoch)
    assert newest_sound(tmp_path).path == tmp_path / "epoch_1"
    cut_short(tmp_path / "epoch_1" / "optimizer.bin")
    found = newest_sound(tmp_path)
    assert found.path == tmp_path / "epoch_0"
    assert "optimizer.bin is damaged" in found.passed_over[0]
    del optimizer


def test_distributed_checkpoints_need_their_table(tmp_path):
    import torch
    import torch.distributed.checkpoint as dcp

    for step in (1, 2):
        dcp.save({"model": torch.zeros(1000)}, checkpoint_id=str(tmp_path / f"step_{step}"), no_dist=True)
        aged(tmp_path / f"step_{step}", 100 - 10 * step)
    assert newest_sound(tmp_path).path == tmp_path / "step_2"
    (tmp_path / "step_2" / ".metadata").unlink()  # which is written last
    assert newest_sound(tmp_path).path == tmp_path / "step_1"


def test_no_framework_is_imported_for_it(run):
    code = (
        "import sys; from pathlib import Path; from self_healing.supervisor.checkpoints import newest_sound;"
        "print(newest_sound(Path(sys.argv[1])).path.name);"
        "assert not {'torch', 'numpy', 'safetensors'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "checkpoint-12"


def test_what_a_model_hub_folder_holds_is_no_checkpoint_to_go_on_from(run):
    """`trainer.save_model()` at the end writes weights into the run directory itself."""
    for file in ("model.safetensors", "training_args.bin"):
        shutil.copy(run / "checkpoint-12" / file, run / file)
    for step in (4, 8, 12):
        shutil.rmtree(run / f"checkpoint-{step}")
    assert newest_sound(run) == (None, ())
    assert Path(run / "model.safetensors").exists()

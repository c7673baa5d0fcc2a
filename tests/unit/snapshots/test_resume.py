"""What training goes on from: the newest checkpoint that can be trusted, and what is said of the others."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from self_healing import ConfigError
from self_healing.adapters.run.checkpoint_folders import CheckpointFolder, newest_usable
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import describe, promote, read_manifest, step_of, write_manifest
from self_healing.snapshots.resume import Chosen, choose, must_load, resolve
from self_healing.snapshots.verdicts import GOOD_AFTER, NOT_JUDGED, Condition, StateVerdict, Tier

pytestmark = pytest.mark.torch


@pytest.fixture
def four(checkpoint, tmp_path):
    """Write checkpoints of the steps 9, 10, 20 and 30, each with a manifest."""
    for step in (9, 10, 20, 30):
        folder = checkpoint(step, seed=step)
        write_manifest(folder, describe(folder, NOT_JUDGED))
    return tmp_path


def everything_in(folder):
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_the_newest_is_taken_by_its_number_and_not_by_its_name_or_age(four):
    os.utime(four / "checkpoint-9")
    chosen = choose(four)
    assert chosen.path == four / "checkpoint-30"
    assert (chosen.step, chosen.passed_over) == (30, ())
    assert chosen.checked.verified
    assert str(chosen) == "checkpoint-30 is resumed from"


def test_damaged_incomplete_and_sick_ones_are_passed_over_with_their_reasons_and_nothing_is_touched(four, flip_bit):
    flip_bit(four / "checkpoint-30" / "model.safetensors")
    (four / "checkpoint-20" / "optimizer.pt").unlink()
    promote(four / "checkpoint-10", StateVerdict(Condition.SICK, "loss-divergence began at step 9"))
    before = everything_in(four)
    chosen = choose(four)
    assert chosen.step == 9
    assert [(folder.name, why) for folder, why in chosen.passed_over] == [
        ("checkpoint-30", "model.safetensors is damaged: its checksum is not the one written down"),
        ("checkpoint-20", "optimizer.pt is missing: training would go on with a fresh optimizer"),
        ("checkpoint-10", "it is marked sick: loss-divergence began at step 9"),
    ]
    assert "passed over: checkpoint-30: model.safetensors is damaged" in str(chosen)
    assert everything_in(four) == before


def test_one_without_a_manifest_is_taken_and_said_to_be_unverified(four, checkpoint):
    checkpoint(40)
    chosen = choose(four)
    assert chosen.step == 40
    assert not chosen.checked.verified
    assert str(chosen) == "checkpoint-40 is resumed from (there are no checksums: only its structure was looked at)"


def test_only_checkpoints_from_before_a_step_are_taken_where_one_is_given(four):
    chosen = choose(four, before_step=20)
    assert chosen.step == 10
    assert [why for _, why in chosen.passed_over] == ["it is not from before step 20"] * 2
    assert choose(four, before_step=9).path is None


@pytest.mark.parametrize("wanted", ["auto", True])
def test_auto_and_true_mean_the_same_and_begin_anew_where_there_is_nothing(wanted, four, tmp_path):
    assert resolve(wanted, four).step == 30
    assert resolve(wanted, tmp_path / "not there") == Chosen()
    (tmp_path / "empty").mkdir()
    assert resolve(wanted, tmp_path / "empty") == Chosen()
    assert str(Chosen()) == "no checkpoint is resumed from"


@pytest.mark.parametrize("wanted", [None, False])
def test_whoever_does_not_ask_does_not_resume(wanted, four):
    assert resolve(wanted, four) == Chosen()


def test_a_checkpoint_asked_for_by_name_must_be_whole_but_may_be_sick(four):
    folder = four / "checkpoint-20"
    promote(folder, StateVerdict(Condition.SICK, "mine"))
    assert resolve(str(folder), four).path == folder
    (folder / "scheduler.pt").unlink()
    with pytest.raises(ConfigError, match=r"checkpoint-20.*scheduler\.pt is missing.*\"auto\""):
        resolve(folder, four)
    with pytest.raises(ConfigError, match="no such folder"):
        resolve("nowhere", four)


class Custom:
    """What an optimizer of somebody's own may keep in its state."""


def test_who_has_changed_a_checkpoint_himself_is_told_how_it_is_taken_all_the_same(four):
    folder = four / "checkpoint-30"
    (folder / "trainer_state.json").write_text('{"global_step": 30, "save_steps": 7}')
    with pytest.raises(
        ConfigError, match=r"If you have changed its files yourself, remove healing_manifest\.json in it\."
    ):
        resolve(folder, four)
    (folder / "healing_manifest.json").unlink()
    assert resolve(folder, four).path == folder


def test_a_file_that_torch_refuses_is_passed_over_where_nothing_is_known_of_it_and_else_said(four, checkpoint):
    """Checksums that agree say that it was written so: then every checkpoint is like it, and none is passed over."""
    import torch

    folders = [checkpoint(40), four / "checkpoint-30"]
    for folder in folders:
        torch.save({"state": Custom()}, folder / "optimizer.pt")
    write_manifest(folders[1], describe(folders[1], NOT_JUDGED))
    refused = (
        r"optimizer\.pt was not unpickled, for it holds more than tensors and plain values \(`.*Custom`\) or is damaged"
    )
    chosen = choose(four, finite=True)
    assert chosen.path == folders[1]
    assert re.fullmatch(refused, chosen.passed_over[0].why)
    with pytest.raises(ConfigError, match=rf"checkpoint-30 cannot .*: {refused}\. Name another .* remove this folder"):
        must_load(chosen)
    for folder in folders:
        with pytest.raises(ConfigError, match=rf"{folder.name}' cannot be resumed from: {refused}\. Name another"):
            resolve(folder, four)


@pytest.mark.parametrize("wanted", [5, 0, 1.5, ["checkpoint-20"], b"checkpoint-20", ""], ids=repr)
def test_what_names_no_checkpoint_is_refused_by_its_key_with_what_is_allowed(wanted, four):
    allowed = r'must be None, False, True, "auto" or the path of a checkpoint'
    with pytest.raises(ConfigError, match=re.escape(f"resume_from_checkpoint={wanted!r}: {allowed}")):
        resolve(wanted, four)


def test_who_calls_it_otherwise_is_told_of_it_by_that_name_and_not_of_files_that_others_write(four, tmp_path):
    (tmp_path / "other").mkdir()
    with pytest.raises(
        ConfigError, match=r"^resume='.*other' cannot be resumed from: it is no checkpoint of guard\(\)\."
    ):
        resolve(tmp_path / "other", four, key="resume", writer="guard()")
    (four / "checkpoint-20" / "scheduler.pt").unlink()
    with pytest.raises(ConfigError, match=r"^resume=.*scheduler\.pt is missing"):
        resolve(four / "checkpoint-20", four, key="resume", writer="guard()")


def test_files_and_folders_with_other_names_do_not_matter(four):
    (four / "checkpoint-99").write_text("a file")
    (four / "checkpoint-best").mkdir()
    (four / "checkpoint-77.bak").mkdir()
    (four / "checkpoint-50").mkdir()
    (four / "checkpoint-60").symlink_to("nowhere")
    chosen = choose(four)
    assert chosen.step == 30
    assert [folder.name for folder, _ in chosen.passed_over] == ["checkpoint-99", "checkpoint-60", "checkpoint-50"]


def test_a_directory_that_cannot_be_listed_is_said_and_not_taken_for_an_empty_one(tmp_path):
    (tmp_path / "file").write_text("")
    chosen = choose(tmp_path / "file")
    assert chosen.path is None
    assert "cannot be listed: Not a directory" in str(chosen)


def test_model_only_checkpoints_are_taken_where_the_run_saves_only_those(checkpoint, tmp_path):
    checkpoint(10, optimizer=False)
    assert choose(tmp_path).path is None
    assert choose(tmp_path, model_only=True).step == 10
    assert resolve("auto", tmp_path, model_only=True).step == 10


def test_the_call_of_the_adapters_is_a_quick_look_unless_more_is_asked_for(four, flip_bit):
    flip_bit(four / "checkpoint-30" / "model.safetensors")
    assert newest_usable(four, None) == (CheckpointFolder(four / "checkpoint-30", 30), [])
    folder, told = newest_usable(four, None, thorough=True)
    assert folder == CheckpointFolder(four / "checkpoint-20", 20)
    assert told == ["checkpoint-30: model.safetensors is damaged: its checksum is not the one written down"]
    assert newest_usable(four, 9)[0] is None


# -- the checkpoints of a running training -----------------------------------------------------------------


def condition_of(folder):
    return read_manifest(folder).verdict.condition


def saved(tier, folder, *, is_finite, **more):
    """Judge the state of a folder and take note of it, as around a save."""
    verdict = tier.judged(step_of(folder), is_finite=is_finite)
    tier.saved(folder, verdict, **more)
    return verdict


def test_verdicts_reach_the_disk_as_the_run_goes_on(checkpoint):
    tier = DiskTier()
    first = checkpoint(10)
    assert saved(tier, first, is_finite=True).condition is Condition.INTACT
    for step in range(11, 11 + GOOD_AFTER[Tier.DISK]):
        tier.observed(step, is_healthy=True)
    second, third = checkpoint(2000), checkpoint(2001)
    saved(tier, second, is_finite=True)
    tier.incident_opened("loss-divergence", 1990)
    assert saved(tier, third, is_finite=True).condition is Condition.SICK
    tier.incidents_over()
    fourth, fifth, sixth = checkpoint(2100), checkpoint(2101), checkpoint(2102)
    saved(tier, fourth, is_finite=True)
    saved(tier, fifth, is_finite=False)
    saved(tier, sixth, is_finite=None)
    assert tier.close(60)
    assert [condition_of(folder) for folder in (first, second, third, fourth, fifth, sixth)] == [
        Condition.GOOD, Condition.SICK, Condition.SICK, Condition.INTACT, Condition.SICK, Condition.UNKNOWN,
    ]  # fmt: skip
    assert "loss-divergence began at step 1990" in read_manifest(second).verdict.because


def test_what_was_deleted_is_forgotten_and_a_return_leaves_newer_ones_alone(checkpoint):
    tier = DiskTier()
    first, second = checkpoint(10), checkpoint(20)
    saved(tier, first, is_finite=True)
    saved(tier, second, is_finite=True)
    shutil.rmtree(first)
    third = checkpoint(30)
    saved(tier, third, is_finite=True)
    assert [Path(state.key) for state in tier.states] == [second, third]
    tier.returned(20)
    for step in range(21, 100 + GOOD_AFTER[Tier.DISK]):
        tier.observed(step, is_healthy=True)
    assert tier.close(60)
    assert (condition_of(second), condition_of(third)) == (Condition.GOOD, Condition.INTACT)
    assert not first.exists()


def test_healthy_steps_after_a_resume_speak_for_the_checkpoint_of_the_earlier_process(checkpoint):
    folder = checkpoint(10)
    before = DiskTier()
    saved(before, folder, is_finite=True)
    assert before.close(60)
    tier = DiskTier()
    tier.resumed(folder)
    for step in range(11, 11 + GOOD_AFTER[Tier.DISK]):
        tier.observed(step, is_healthy=True)
    assert tier.close(60)
    assert condition_of(folder) is Condition.GOOD


def test_a_checkpoint_that_came_with_its_manifest_is_judged_without_being_hashed_again(checkpoint):
    tier, folder = DiskTier(), checkpoint(10)
    write_manifest(folder, describe(folder, NOT_JUDGED))
    before = read_manifest(folder)
    assert saved(tier, folder, is_finite=True, has_manifest=True).condition is Condition.INTACT
    assert tier.close(60)
    assert read_manifest(folder).files == before.files
    tier.incident_opened("loss-divergence", 9)
    assert tier.close(60)
    assert condition_of(folder) is Condition.SICK

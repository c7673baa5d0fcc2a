"""A checkpoint that the run has gone on from before says so, and others are taken first."""

from __future__ import annotations

import os
import time

import pytest

from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import mark, read_manifest, withdraw
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.resume import choose, resolve
from self_healing.snapshots.verdicts import Condition, StateVerdict

from .test_refused_manifests import fill

pytestmark = pytest.mark.torch
INTACT = StateVerdict(Condition.INTACT, "finite")
SICK = StateVerdict(Condition.SICK, "loss-spike began at step 17")
UNDONE = "the run has returned from it to step 16"


def test_an_older_one_is_taken_before_it_and_it_before_none(checkpoint):
    older, newer, writer = checkpoint(10), checkpoint(20), ManifestWriter()
    for folder in (older, newer):
        writer.request(folder, INTACT)
    writer.undone(newer, UNDONE)
    assert writer.finish(60)
    chosen = choose(older.parent)
    assert (chosen.path, chosen.is_undone) == (older, False)
    assert str(chosen) == f"checkpoint-10 is resumed from; passed over: checkpoint-20: {UNDONE}"
    mark(older, SICK)
    chosen = choose(older.parent)
    assert (chosen.path, chosen.is_undone) == (newer, True)
    assert str(chosen) == (
        f"checkpoint-20 is resumed from ({UNDONE}); passed over: checkpoint-10: it is marked sick: loss-spike began at step 17"
    )
    assert resolve(newer, older.parent).path == newer, "it was asked for by name"


def test_it_is_written_down_at_once_and_stays_beside_the_checksums(checkpoint):
    folder, writer = checkpoint(20), ManifestWriter()
    with writer.standing_still():  # before anything is hashed
        writer.request(folder, INTACT)
        writer.undone(folder, UNDONE)
        assert (read_manifest(folder).undone, read_manifest(folder).files) == (UNDONE, {})
    assert writer.finish(60)
    found = read_manifest(folder)
    assert (found.verdict, found.undone) == (INTACT, UNDONE)
    assert "model.safetensors" in found.files


def test_what_is_written_over_is_of_the_run_again(checkpoint):
    folder, writer = checkpoint(20), ManifestWriter()
    writer.request(folder, INTACT)
    writer.undone(folder, UNDONE)
    assert writer.finish(60)
    writer.request(folder, INTACT)
    assert writer.finish(60)
    assert read_manifest(folder).undone == ""


def test_a_return_says_it_of_what_it_is_told_and_what_is_sick_stays_that(checkpoint):
    tier, folders = DiskTier(), [checkpoint(step) for step in (10, 20, 30)]
    tier.saved(folders[0], INTACT)
    tier.saved(folders[2], SICK)
    tier.returned(16, undone=folders[1:])
    assert tier.close(60)
    assert [read_manifest(folder).undone for folder in folders] == ["", UNDONE, ""]
    assert [state.step for state in tier.states] == [10]


def test_what_the_disk_refuses_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("self_healing.snapshots.manifest_writer.AGAIN_S", 0.0)
    told = []
    try:
        with small_disk(tmp_path / "disk", 64 << 10):
            folder = tmp_path / "disk" / "checkpoint-20"
            folder.mkdir()
            writer, rest = ManifestWriter(told.append), fill(tmp_path / "disk")
            writer.undone(folder, UNDONE)
            writer.try_again()
            assert read_manifest(folder) is None
            assert len(told) == 1, "once is enough"
            assert "checkpoint-20 is of steps that are undone, which could not be written down" in told[0]
            rest.unlink()
            writer.try_again()
            assert read_manifest(folder).undone == UNDONE
            withdraw(folder)
            assert writer.finish(60)
            assert read_manifest(folder) is None
    except CannotMountError as error:
        pytest.skip(str(error))


def test_it_goes_before_older_ones_where_room_is_made(checkpoint):
    tier, folders = DiskTier(), [checkpoint(step) for step in (10, 20, 30)]
    for age, folder in zip((300, 200, 100), folders, strict=True):
        os.utime(folder, (time.time() - age,) * 2)
        tier.saved(folder, INTACT)
    tier.returned(16, undone=folders[1:2])
    with tier.saving():  # as when room is made: manifests give a folder its time back
        tier.least_wanted_go_first()
    assert tier.close(60)
    assert min(folders, key=lambda folder: folder.stat().st_mtime) == folders[1]

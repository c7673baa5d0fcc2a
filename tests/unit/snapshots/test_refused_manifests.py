"""A manifest that a disk refuses is tried again, and told where it has failed to the last."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest

from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.snapshots import manifest_writer
from self_healing.snapshots.manifest import read_manifest
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.verdicts import Condition, StateVerdict

INTACT = StateVerdict(Condition.INTACT, "finite")
GOOD = StateVerdict(Condition.GOOD, "1024 healthy observations in a row after it")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint on a file system with room for a few blocks."""
    try:
        with small_disk(tmp_path / "disk", 64 << 10):
            (tmp_path / "disk" / "checkpoint-30").mkdir()
            (tmp_path / "disk" / "checkpoint-30" / "model.safetensors").write_bytes(b"weights")
            yield tmp_path / "disk" / "checkpoint-30"
    except CannotMountError as error:
        pytest.skip(str(error))


def fill(disk):
    """Leave no room on a disk; return what makes some."""
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return disk / "rest"


def test_a_manifest_that_found_no_room_is_written_when_there_is_some_a_moment_later(folder):
    rest, told = fill(folder.parent), []
    writer = ManifestWriter(told.append)
    writer.request(folder, INTACT)
    time.sleep(0.2)
    assert read_manifest(folder) is None
    rest.unlink()
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, set(read_manifest(folder).files)) == (INTACT, {"model.safetensors"})
    assert not told


def test_a_verdict_that_found_no_room_is_written_when_there_is_some_a_moment_later(folder):
    told = []
    writer = ManifestWriter(told.append)
    writer.request(folder, INTACT)
    assert writer.finish(60)
    rest = fill(folder.parent)
    writer.promote(folder, GOOD)
    time.sleep(0.2)
    assert read_manifest(folder).verdict == INTACT
    rest.unlink()
    assert writer.finish(60)
    assert read_manifest(folder).verdict == GOOD
    assert not told


def test_what_the_disk_refuses_to_the_last_is_told_once(folder, monkeypatch):
    monkeypatch.setattr(manifest_writer, "PAUSE_S", 0.01)
    fill(folder.parent)
    told = []
    writer = ManifestWriter(told.append)
    writer.request(folder, INTACT)
    assert writer.finish(60)
    (said,) = told
    assert said.startswith("checkpoint-30: it cannot be hashed, or its manifest not be written: ")
    assert "No space left on device" in said


def test_a_folder_that_is_deleted_meanwhile_is_not_waited_for(folder):
    rest, told = fill(folder.parent), []
    writer = ManifestWriter(told.append)
    writer.request(folder, INTACT)
    time.sleep(0.2)
    (folder / "model.safetensors").unlink()
    folder.rmdir()
    assert writer.finish(60)
    rest.unlink()
    assert not folder.exists()
    assert not told, "nobody misses the manifest of what is gone"


def test_a_mark_whose_lifting_found_no_room_is_lifted_when_there_is_some_and_that_is_said(folder, monkeypatch):
    monkeypatch.setattr(manifest_writer, "AGAIN_S", 0.0)
    monkeypatch.setattr(manifest_writer, "PAUSE_S", 0.0)
    told, sick = [], StateVerdict(Condition.SICK, "loss-spike began at step 25")
    writer = ManifestWriter(told.append)
    writer.request(folder, sick)
    assert writer.finish(60)
    rest = fill(folder.parent)
    writer.lift(folder, sick, INTACT)
    assert writer.takes_marks_back
    assert writer.finish(60), "all of it was tried"
    writer.try_again()
    assert writer.finish(60)
    (said,) = told
    assert said.endswith("until it can be, it stays marked sick (loss-spike began at step 25)")
    assert read_manifest(folder).verdict == sick
    rest.unlink()
    writer.try_again()
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, writer.takes_marks_back) == (INTACT, False)


def test_a_checkpoint_is_read_once_however_often_the_disk_refuses_its_manifest(folder, monkeypatch):
    monkeypatch.setattr(manifest_writer, "PAUSE_S", 0.0)
    fill(folder.parent)
    writer, reads = ManifestWriter(), []
    opened = str(folder / "model.safetensors")
    sys.addaudithook(lambda event, values: reads.append(1) if event == "open" and values[0] == opened else None)
    writer.request(folder, INTACT)
    assert writer.finish(60)
    assert read_manifest(folder) is None
    assert len(reads) == 1

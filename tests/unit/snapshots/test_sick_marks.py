"""That a checkpoint is sick is written down before anything can come between, and again where it could not be."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from self_healing.drills.disk_faults import CannotMountError, small_disk
from self_healing.snapshots.disk_tier import DiskTier
from self_healing.snapshots.manifest import mark, promote, read_manifest
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.resume import choose
from self_healing.snapshots.verdicts import Condition, StateVerdict

INTACT = StateVerdict(Condition.INTACT, "finite")
SICK = StateVerdict(Condition.SICK, "not finite: weights")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint that takes a while to be hashed."""
    path = tmp_path / "checkpoint-30"
    path.mkdir()
    with (path / "large").open("wb") as file:
        file.truncate(1 << 30)
    return path


@pytest.fixture
def disk(tmp_path):
    """A file system with room for a few blocks."""
    try:
        with small_disk(tmp_path / "disk", 64 << 10):
            yield tmp_path / "disk"
    except CannotMountError as error:
        pytest.skip(str(error))


def test_a_sick_folder_has_its_mark_before_it_is_hashed(folder):
    writer = ManifestWriter()
    writer.request(folder, SICK)
    found = read_manifest(folder)
    assert (found.verdict, found.files) == (SICK, {})
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, set(read_manifest(folder).files)) == (SICK, {"large"})


def test_what_turns_out_sick_while_it_is_hashed_is_marked_at_once_and_stays_so(folder):
    writer = ManifestWriter()
    writer.request(folder, INTACT)
    writer.promote(folder, SICK)
    assert read_manifest(folder).verdict == SICK
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, set(read_manifest(folder).files)) == (SICK, {"large"})


def test_a_mark_that_found_no_room_is_written_when_there_is_some(disk):
    folder, told = disk / "checkpoint-30", []
    folder.mkdir()
    writer = ManifestWriter(told.append)
    (disk / "rest").write_bytes(b"x" * (1 << 15))
    with (disk / "rest").open("ab", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    writer.promote(folder, SICK)
    assert read_manifest(folder) is None
    assert "checkpoint-30 is sick, which could not be written down" in told[0]
    assert not writer.finish(60)
    (disk / "rest").unlink()
    assert writer.finish(60)
    assert read_manifest(folder).verdict == SICK


def test_a_mark_that_found_no_room_is_not_put_on_what_has_taken_the_folder_since(disk):
    folder, told = disk / "checkpoint-30", []
    folder.mkdir()
    writer = ManifestWriter(told.append)
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    writer.promote(folder, SICK)
    assert told
    (disk / "rest").unlink()
    (folder / "file").write_bytes(b"the run has come by this step once more")
    writer.request(folder, INTACT)
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, set(read_manifest(folder).files)) == (INTACT, {"file"})


def test_the_folder_of_a_sick_state_is_marked_before_anything_else_is_in_it(tmp_path):
    folder = tmp_path / "checkpoint-30"
    DiskTier().marked_first(folder, SICK)
    assert [path.name for path in folder.iterdir()] == ["healing_manifest.json"]
    assert choose(tmp_path).path is None


def test_what_is_there_under_the_name_of_a_sick_state_keeps_its_verdict_until_it_is_written_over(tmp_path):
    folder = tmp_path / "checkpoint-30"
    folder.mkdir()
    DiskTier().marked_first(folder, SICK)
    DiskTier().marked_first(tmp_path / "checkpoint-31", INTACT)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["checkpoint-30"]
    assert promote(folder, SICK)


def test_a_mark_is_lifted_and_one_that_somebody_else_has_put_there_is_not(tmp_path):
    folders = [tmp_path / "checkpoint-30", tmp_path / "checkpoint-31"]
    writer, other = ManifestWriter(), StateVerdict(Condition.SICK, "rank 1 has found trouble that began before it")
    for folder, verdict in zip(folders, (SICK, other), strict=True):
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
        writer.request(folder, verdict)
    assert writer.finish(60)
    for folder in folders:
        writer.lift(folder, SICK, INTACT)
    assert writer.finish(60)
    assert [read_manifest(folder).verdict for folder in folders] == [INTACT, other]
    assert set(read_manifest(folders[0]).files) == {"file"}


def test_a_mark_that_is_lifted_while_the_folder_is_hashed_does_not_come_back(folder):
    writer = ManifestWriter()
    writer.request(folder, SICK)
    time.sleep(0.05)  # it takes longer than that
    writer.lift(folder, SICK, INTACT)
    assert read_manifest(folder).verdict == SICK
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, set(read_manifest(folder).files)) == (INTACT, {"large"})


def test_what_is_found_sick_again_before_its_mark_was_lifted_stays_sick(folder):
    writer = ManifestWriter()
    writer.request(folder, SICK)
    assert writer.finish(60)
    with writer.standing_still():
        writer.lift(folder, SICK, INTACT)
        writer.promote(folder, StateVerdict(Condition.SICK, "loss-spike began at step 30"))
    assert writer.finish(60)
    assert read_manifest(folder).verdict.is_sick


def test_a_mark_that_found_no_room_is_not_written_after_it_was_lifted(disk):
    folder, told = disk / "checkpoint-30", []
    folder.mkdir()
    writer = ManifestWriter(told.append)
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    writer.promote(folder, SICK)
    writer.lift(folder, SICK, INTACT)
    (disk / "rest").unlink()
    assert writer.finish(60)
    assert read_manifest(folder) is None


def test_a_file_that_a_person_has_removed_keeps_no_mark_off(tmp_path):
    folder, writer = tmp_path / "checkpoint-30", ManifestWriter()
    folder.mkdir()
    for name in ("trainer_state.json", "training_args.bin"):
        (folder / name).write_bytes(b"x")
    writer.request(folder, INTACT)
    assert writer.finish(60)
    (folder / "training_args.bin").unlink()
    writer.promote(folder, SICK)
    found = read_manifest(folder)
    assert (found.verdict, set(found.files)) == (SICK, {"trainer_state.json", "training_args.bin"})


def test_a_folder_that_has_no_state_left_gets_no_mark_for_it_is_being_deleted(tmp_path):
    folder, writer = tmp_path / "checkpoint-30", ManifestWriter()
    folder.mkdir()
    for name in ("trainer_state.json", "model.safetensors"):
        (folder / name).write_bytes(b"x")
    writer.request(folder, INTACT)
    assert writer.finish(60)
    (folder / "trainer_state.json").unlink()
    writer.promote(folder, SICK)
    assert read_manifest(folder).verdict == INTACT


def test_a_mark_that_lists_no_files_leaves_none_that_would_vouch_for_them(tmp_path):
    folder, writer = tmp_path / "checkpoint-30", ManifestWriter()
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    writer.promote(folder, SICK)
    assert read_manifest(folder).verdict == SICK
    writer.lift(folder, SICK, INTACT)
    assert writer.finish(60)
    assert read_manifest(folder) is None
    mark(folder, INTACT)
    DiskTier(writer).marked_first(folder, INTACT, writes_over=True)
    assert read_manifest(folder).verdict.is_sick, "what is written over now is told from a checkpoint by nothing else"


def test_a_mark_that_found_no_room_is_written_while_the_run_goes_on(disk, monkeypatch):
    monkeypatch.setattr("self_healing.snapshots.manifest_writer.AGAIN_S", 0.0)
    folder, told = disk / "checkpoint-30", []
    folder.mkdir()
    tier = DiskTier(ManifestWriter(told.append))
    with (disk / "rest").open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    tier.saved(folder, INTACT, has_manifest=True)
    tier.incident_opened("loss-spike", 25)
    tier.observed(31, is_healthy=False)
    assert read_manifest(folder) is None
    assert len(told) == 1
    (disk / "rest").unlink()
    tier.observed(32, is_healthy=False)
    assert read_manifest(folder).verdict.because == "loss-spike began at step 25"


def test_a_second_mark_that_comes_before_the_first_was_lifted_can_be_lifted_too(folder):
    writer, again = ManifestWriter(), StateVerdict(Condition.SICK, "loss-divergence began at step 20")
    writer.request(folder, SICK)
    assert writer.finish(60)
    with writer.standing_still():
        writer.lift(folder, SICK, INTACT)
        writer.promote(folder, again)
        assert read_manifest(folder).verdict == again
    writer.lift(folder, again, INTACT)
    assert writer.finish(60)
    assert read_manifest(folder).verdict == INTACT

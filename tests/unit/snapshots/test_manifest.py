"""Manifests: of real folders, written whole or not at all, beside whatever else happens to the folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from self_healing.snapshots import manifest_writer
from self_healing.snapshots.manifest import (
    FILE_NAME,
    FolderChangingError,
    ManifestError,
    describe,
    mark_of,
    promote,
    read_manifest,
    withdraw,
    write_manifest,
)
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.verdicts import NOT_JUDGED, Condition, StateVerdict

INTACT = StateVerdict(Condition.INTACT, "finite")
GOOD = StateVerdict(Condition.GOOD, "1024 healthy observations")
SICK = StateVerdict(Condition.SICK, "divergence began at step 3")


@pytest.fixture
def folder(tmp_path):
    """Any folder will do here: manifests know nothing of what the files are."""
    place = tmp_path / "checkpoint-30"
    (place / "global_step30").mkdir(parents=True)
    (place / "model.safetensors").write_bytes(os.urandom(3 << 20))
    (place / "global_step30" / "shard").write_bytes(b"x" * 100)
    (place / "empty").touch()
    return place


def test_a_manifest_names_step_time_verdict_and_every_file_with_size_and_checksum(folder):
    import xxhash

    write_manifest(folder, describe(folder, INTACT))
    data = json.loads((folder / FILE_NAME).read_text())
    assert list(data) == ["v", "step", "created", "verdict", "files"]
    assert (data["v"], data["step"]) == (1, 30)
    assert data["verdict"] == {"condition": "intact", "because": "finite"}
    content = (folder / "model.safetensors").read_bytes()
    assert data["files"]["model.safetensors"] == {"size": 3 << 20, "xxh3": xxhash.xxh3_128_hexdigest(content)}
    assert set(data["files"]) == {"model.safetensors", "global_step30/shard", "empty"}
    assert read_manifest(folder) == describe_again(folder, data["created"])


def describe_again(folder, created):
    from dataclasses import replace

    return replace(describe(folder, INTACT), created=created)


def test_links_pipes_and_loops_in_the_folder_do_not_matter(folder, tmp_path):
    (tmp_path / "base.safetensors").write_bytes(b"base")
    (folder / "linked").symlink_to(tmp_path / "base.safetensors")
    (folder / "dead").symlink_to("nowhere")
    (folder / "circle").symlink_to("circle")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    found = describe(folder, NOT_JUDGED).files
    assert set(found) == {"model.safetensors", "global_step30/shard", "empty", "linked"}
    assert found["linked"].size == 4


def test_a_file_of_which_more_is_read_than_it_had_is_being_written(folder):
    (folder / "growing").symlink_to("/proc/version")  # its size is 0, and yet there is something to read
    with pytest.raises(FolderChangingError, match="growing is being written"):
        describe(folder, NOT_JUDGED)


def run_beside(work):
    """Start a thread that works until the returned function is called."""
    stop = threading.Event()

    def go_on():
        for number in itertools.count():
            if stop.is_set():
                return
            work(number)

    thread = threading.Thread(target=go_on)
    thread.start()
    return lambda: (stop.set(), thread.join())


def test_a_file_that_is_written_over_meanwhile_is_not_hashed(folder):
    path = folder / "model.safetensors"
    end = run_beside(lambda number: os.utime(path, ns=(number, number)))
    try:
        with pytest.raises(FolderChangingError, match=r"model\.safetensors is being written"):
            list(map(mark_of, [path] * 1000))  # one may fall between two changes
    finally:
        end()


def test_a_folder_to_which_files_are_added_is_not_described(folder):
    end = run_beside(lambda number: (folder / f"added-{number}").touch())
    try:
        with pytest.raises(FolderChangingError, match="files come and go: added-"):
            list(map(describe, [folder] * 1000, [NOT_JUDGED] * 1000))
    finally:
        end()


def test_the_folder_keeps_its_modification_time_for_trainers_delete_by_it(folder):
    os.utime(folder, ns=(10**18, 10**18))
    write_manifest(folder, describe(folder, INTACT))
    assert folder.stat().st_mtime_ns == 10**18
    promote(folder, GOOD)
    assert folder.stat().st_mtime_ns == 10**18
    withdraw(folder)
    assert folder.stat().st_mtime_ns == 10**18
    assert read_manifest(folder) is None


def test_others_may_read_the_manifest_of_a_folder_they_may_read(folder):
    manifest = describe(folder, INTACT)
    for mode, expected in ((0o755, 0o644), (0o700, 0o600)):
        folder.chmod(mode)
        write_manifest(folder, manifest)
        assert (folder / FILE_NAME).stat().st_mode & 0o777 == expected


def test_a_folder_that_has_gone_is_not_made_again(folder):
    manifest = describe(folder, INTACT)
    shutil.rmtree(folder)
    with pytest.raises(FolderChangingError):
        write_manifest(folder, manifest)
    with pytest.raises(FolderChangingError):
        describe(folder, INTACT)
    assert not folder.exists()


def test_a_folder_that_is_being_deleted_is_left_alone(folder):
    manifest = describe(folder, INTACT)
    shutil.rmtree(folder / "global_step30")
    (folder / "model.safetensors").unlink()
    (folder / "empty").unlink()
    with pytest.raises(FolderChangingError, match="is being deleted"):
        write_manifest(folder, manifest)
    assert not folder.exists()


def test_promotion_changes_the_verdict_and_nothing_else_and_sick_is_final(folder):
    write_manifest(folder, describe(folder, INTACT))
    before = read_manifest(folder)
    assert promote(folder, GOOD)
    after = read_manifest(folder)
    assert (after.verdict, after.files, after.created, after.step) == (GOOD, before.files, before.created, 30)
    assert promote(folder, SICK)
    assert not promote(folder, GOOD)
    assert read_manifest(folder).verdict == SICK


def test_without_a_manifest_only_a_sick_folder_is_marked(folder):
    assert not promote(folder, GOOD)
    assert read_manifest(folder) is None
    assert promote(folder, SICK)
    assert read_manifest(folder).verdict == SICK
    assert read_manifest(folder).files == {}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a\0b", "a\ud800"])
def test_a_manifest_does_not_lead_out_of_its_folder(name, folder):
    write_manifest(folder, describe(folder, INTACT))
    data = json.loads((folder / FILE_NAME).read_text())
    data["files"][name] = {"size": 1, "xxh3": "0"}
    (folder / FILE_NAME).write_text(json.dumps(data))
    with pytest.raises(ManifestError, match="outside the folder"):
        read_manifest(folder)


def test_a_manifest_of_a_newer_format_is_not_guessed_at(folder):
    write_manifest(folder, describe(folder, INTACT))
    data = json.loads((folder / FILE_NAME).read_text())
    (folder / FILE_NAME).write_text(json.dumps({**data, "v": 99}))
    with pytest.raises(ManifestError, match=r"a newer version of self_healing has written it \(format 99"):
        read_manifest(folder)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_something_else_under_its_name_is_said_and_leaves_no_open_file(make, folder):
    make(folder / FILE_NAME)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(ManifestError, match="not a regular file"):
            read_manifest(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


PROMOTER = """
import sys
from pathlib import Path
from self_healing.snapshots.manifest import promote
from self_healing.snapshots.verdicts import Condition, StateVerdict
print("begin", flush=True)
while True:
    for condition in (Condition.GOOD, Condition.INTACT):
        promote(Path(sys.argv[1]), StateVerdict(condition, "x" * 5000))
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_manifest(folder):
    write_manifest(folder, describe(folder, INTACT))
    for delay in (0.0, 0.013, 0.029, 0.041, 0.057):
        process = subprocess.Popen([sys.executable, "-c", PROMOTER, str(folder)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        found = read_manifest(folder)
        assert found.verdict.survives_a_crash
        assert set(found.files) == {"model.safetensors", "global_step30/shard", "empty"}
    assert set(describe(folder, INTACT).files) == set(found.files)  # what was left over is not part of the checkpoint


FULL_DISK = """
import resource, sys
from pathlib import Path
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.verdicts import Condition, StateVerdict
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
writer = ManifestWriter(print)
writer.promote(Path(sys.argv[1]), StateVerdict(Condition.GOOD, ""))
assert writer.finish(60)
"""


def test_where_there_is_no_room_the_old_manifest_stays_and_it_is_said(folder):
    write_manifest(folder, describe(folder, INTACT))
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(folder)], check=True, capture_output=True, text=True)
    assert "its manifest could not be written" in done.stdout
    assert read_manifest(folder).verdict == INTACT
    assert not list(folder.glob(".*"))


REQUESTER = """
import sys
from pathlib import Path
from self_healing.snapshots.manifest_writer import ManifestWriter
from self_healing.snapshots.verdicts import NOT_JUDGED
ManifestWriter().request(Path(sys.argv[1]), NOT_JUDGED)
{end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "raise KeyError('mine')"])
def test_a_process_that_ends_has_written_its_manifests(end, folder):
    with (folder / "large").open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run([sys.executable, "-c", REQUESTER.format(end=end), str(folder)], check=False, capture_output=True)
    assert read_manifest(folder).files["large"].size == 512 << 20


def test_the_writer_hashes_and_promotes_in_order_and_begins_again_when_asked(folder):
    writer = ManifestWriter()
    writer.request(folder, INTACT)
    writer.promote(folder, GOOD)
    assert writer.finish(60)
    assert read_manifest(folder).verdict == GOOD
    assert "model.safetensors" in read_manifest(folder).files
    writer.promote(folder, SICK)
    assert writer.finish(60)
    assert read_manifest(folder).verdict == SICK


def test_a_folder_written_over_gets_a_new_manifest_and_a_new_verdict(folder):
    writer = ManifestWriter()
    writer.request(folder, SICK)
    assert writer.finish(60)
    (folder / "model.safetensors").write_bytes(b"new")
    with writer.standing_still():
        writer.request(folder, INTACT)
        assert read_manifest(folder) is None  # at once: what is there now is unverified, not damaged
    assert writer.finish(60)
    assert read_manifest(folder).verdict == INTACT
    assert read_manifest(folder).files["model.safetensors"].size == 3


def test_nothing_is_put_in_place_during_a_save(folder):
    writer = ManifestWriter()
    with writer.standing_still():
        writer.request(folder, INTACT)
        assert not writer.finish(0.3)
        assert read_manifest(folder) is None
    assert writer.finish(60)
    assert read_manifest(folder) is not None


def test_deleted_folders_and_files_in_the_place_of_folders_are_survived(folder, tmp_path):
    told = []
    writer = ManifestWriter(told.append)
    (tmp_path / "checkpoint-1").write_text("a file")
    writer.request(tmp_path / "checkpoint-1", SICK)
    writer.request(tmp_path / "checkpoint-2", SICK)
    writer.promote(tmp_path / "checkpoint-3", GOOD)
    writer.request(folder, INTACT)
    assert writer.finish(60)
    assert read_manifest(folder).verdict == INTACT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-30"]
    assert any("checkpoint-1" in text for text in told)


def test_what_does_not_come_to_rest_is_still_marked_sick(folder, monkeypatch):
    monkeypatch.setattr(manifest_writer, "PAUSE_S", 0.01)
    (folder / "growing").symlink_to("/proc/version")
    writer = ManifestWriter()
    writer.request(folder, SICK)
    assert writer.finish(60)
    assert (read_manifest(folder).verdict, read_manifest(folder).files) == (SICK, {})


def test_a_folder_that_comes_to_rest_is_hashed_then(folder):
    (folder / "growing").symlink_to("/proc/version")
    writer = ManifestWriter()
    writer.request(folder, INTACT)
    assert not writer.finish(0.1)
    (folder / "growing").unlink()
    assert writer.finish(60)
    assert "model.safetensors" in read_manifest(folder).files


def test_a_file_that_fails_when_it_is_read_is_said_and_a_sick_folder_still_marked(folder):
    (folder / "failing").symlink_to("/proc/self/mem")  # a regular file whose first byte is an input/output error
    told = []
    writer = ManifestWriter(told.append)
    writer.request(folder, SICK)
    assert writer.finish(60)
    assert "cannot be hashed" in told[0]
    assert read_manifest(folder).verdict == SICK


def test_where_too_many_wait_the_oldest_is_left_out_but_its_bad_verdict_is_not(tmp_path):
    told = []
    writer = ManifestWriter(told.append)
    folders = [tmp_path / f"checkpoint-{step}" for step in range(1, 13)]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_bytes(b"x")
    with writer.standing_still():  # the first may be in work already, the others wait
        for folder in folders:
            writer.request(folder, SICK if folder == folders[2] else INTACT)
    assert writer.finish(60)
    found = [read_manifest(folder) for folder in folders]
    assert sum(manifest is not None and bool(manifest.files) for manifest in found) in (8, 9)
    assert all(manifest.files for manifest in found[-8:])
    assert found[2].verdict == SICK
    assert len(told) in (3, 4)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said_and_survived(folder):
    told = []
    writer = ManifestWriter(told.append)
    folder.chmod(0o500)
    try:
        writer.request(folder, INTACT)
        assert writer.finish(60)
    finally:
        folder.chmod(0o700)
    assert told
    assert "Permission denied" in told[0]

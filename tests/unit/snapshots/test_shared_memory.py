"""Shared memory: what is published outlives a killed process and is read as it was, or refused; nothing is left over."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest
import xxhash

from self_healing.snapshots.shared_folder import SharedMemoryError
from self_healing.snapshots.shared_index import VERSION
from self_healing.snapshots.shared_memory import SharedRun
from self_healing.snapshots.shared_reader import read_states
from self_healing.snapshots.verdicts import Condition

from .shared import INTACT, content_of, files, killed, reasons, steps

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator can do that")


# -- what outlives a process -----------------------------------------------------------------------------


def test_what_a_killed_process_has_published_is_read_byte_for_byte(base):
    folder = killed(base)
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert {oct(each.stat().st_mode & 0o777) for each in folder.iterdir()} == {"0o600"}
    newest, good = read_states("run", base=base)
    assert (newest.step, good.step) == (11, 10)
    assert (newest.index.verdict, good.index.verdict.condition) == (INTACT, Condition.GOOD)
    for state in (newest, good):
        assert state.read("weights") == content_of(state.step)[:5000]
        assert state.read("count") == content_of(state.step)[5008:5016]
        with pytest.raises(ValueError, match="5000 bytes"):
            state.read_into("weights", memoryview(bytearray(4999)))


def test_a_state_that_was_being_written_is_not_there_and_the_one_before_is(base):
    assert steps(found := read_states(killed(base, how="torn").name, base=base)) == [10]
    assert reasons(found) == []


def test_nothing_is_read_where_there_is_nothing(base):
    assert read_states("run", base=base) == []
    killed(base)
    assert read_states("another", base=base) == []


# -- what is refused -------------------------------------------------------------------------------------


def flip(path, place):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))


def newest_files(folder):
    """Return the index and the block of the newest state."""
    index = max(files(folder, "state"), key=lambda path: json.loads(path.read_bytes().split(b"\n", 1)[1])["step"])
    return index, folder / json.loads(index.read_bytes().split(b"\n", 1)[1])["blocks"][0]["file"]


def resigned(index, change):
    """Change an index and give it the checksum of what it then is."""
    body = change(index.read_bytes().split(b"\n", 1)[1])
    head = {"v": VERSION, "bytes": len(body), "xxh3": xxhash.xxh3_128_hexdigest(body)}
    index.write_bytes(json.dumps(head, separators=(",", ":")).encode() + b"\n" + body)


def edited(**changes):
    return lambda body: json.dumps({**json.loads(body), **changes}).encode()


def tensor(*entry):
    return lambda index, _: resigned(index, edited(tensors={"weights": list(entry)}))


def link(path, target):
    path.unlink()
    path.symlink_to(target)


HARM = {
    "a bit of the memory": (lambda _, block: flip(block, 9_999), "checksum of slice 2"),
    "the first bit": (lambda _, block: flip(block, 0), "checksum of slice 0"),
    "cut memory": (lambda _, block: os.truncate(block, 8192), "8192 bytes where 12288"),
    "grown memory": (lambda _, block: os.truncate(block, 16384), "16384 bytes where 12288"),
    "missing memory": (lambda _, block: block.unlink(), "cannot be opened"),
    "memory open to others": (lambda _, block: block.chmod(0o660), "mode 0660"),
    "memory that is a link": (lambda _, block: link(block, "/etc/passwd"), "symbolic link"),
    "a bit of the index": (lambda index, _: flip(index, 200), "checksum differs"),
    "a bit of the first line": (lambda index, _: flip(index, 20), "where|first line|checksum"),
    "a cut index": (lambda index, _: os.truncate(index, 300), "bytes where"),
    "an empty index": (lambda index, _: os.truncate(index, 0), "first line"),
    "an index open to others": (lambda index, _: index.chmod(0o604), "mode 0604"),
    "an index that is a link": (lambda index, _: link(index, "/etc/passwd"), "symbolic link"),
    "an index that is a pipe": (lambda index, _: (index.unlink(), os.mkfifo(index, 0o600)), "is no file"),
    "an index that is a folder": (lambda index, _: (index.unlink(), index.mkdir(0o700)), "is no file"),
    "another version": (lambda index, _: index.write_bytes(index.read_bytes().replace(b'"v":1', b'"v":2', 1)), "version 2"),
    "another run's": (lambda index, _: resigned(index, edited(run="another")), "another run, another"),
    "no JSON": (lambda index, _: resigned(index, lambda _: b"\x80\x04cos\nsystem\n(S'true'\ntR."), "decode|utf-8"),
    "nested too deep": (lambda index, _: resigned(index, lambda _: b"[" * 200_000), "too deep"),
    "endless digits": (lambda index, _: resigned(index, lambda b: b.replace(b'"step":11', b'"step":' + b"1" * 10_000)), "digits"),
    "a list": (lambda index, _: resigned(index, lambda _: b"[1, 2]"), "does not say"),
    "no state": (lambda index, _: resigned(index, edited(state=[])), "does not say"),
    "an unknown verdict": (lambda index, _: resigned(index, edited(verdict={"condition": "x", "because": ""})), "Condition"),
    "slices of nothing": (lambda index, _: resigned(index, edited(slice=0)), "does not say"),
    "a block elsewhere": (
        lambda index, _: resigned(index, lambda b: b.replace(json.loads(b)["blocks"][0]["file"].encode(), b"../../x")),
        "block that cannot be",
    ),
    "fewer hashes": (
        lambda index, _: resigned(index, lambda b: edited(blocks=[{**json.loads(b)["blocks"][0], "xxh3": []}])(b)),
        "block that cannot be",
    ),
    "a tensor behind the end": (tensor("float32", [2501], None, 0, 0), "lies where it cannot"),
    "a tensor before the beginning": (tensor("float32", [1], None, 0, -4), "lies where it cannot"),
    "a tensor of another block": (tensor("float32", [1], None, 1, 0), "lies where it cannot"),
    "a stride that leaves it": (tensor("float32", [2, 2], [2000, 1], 0, 0), "lies where it cannot"),
    "a negative size": (tensor("float32", [-1], None, 0, 0), "cannot be"),
    "huge sizes": (tensor("float32", [2**59, 2**59], None, 0, 0), "lies where it cannot"),
    "a tensor of objects": (tensor("object", [1], None, 0, 0), "cannot be"),
}  # fmt: skip


@pytest.mark.parametrize("harm", HARM)
def test_what_is_not_what_it_was_is_refused_and_the_next_one_is_used(harm, base):
    folder = killed(base)
    do, why = HARM[harm]
    do(*newest_files(folder))
    found = read_states("run", base=base)
    assert steps(found) == [10]
    (reason,) = reasons(found)
    assert re.search(why, reason), reason


@as_root
@pytest.mark.parametrize("which", ["index", "block", "folder", "root", "base"])
def test_what_belongs_to_somebody_else_is_refused(which, base):
    folder = killed(base)
    index, block = newest_files(folder)
    path = {"index": index, "block": block, "folder": folder, "root": folder.parent, "base": base}[which]
    os.chown(path, 65534, 65534)
    found = read_states("run", base=base)
    assert steps(found) == ([10] if which in ("index", "block") else [])
    assert "belongs to user 65534" in reasons(found)[0]
    if which not in ("index", "block"):
        with pytest.raises(SharedMemoryError, match="belongs to user 65534"):
            SharedRun.open("run", base=base)


@pytest.mark.parametrize("which", ["folder", "root", "base"])
def test_a_folder_that_others_may_write_to_is_refused(which, base):
    folder = killed(base)
    path = {"folder": folder, "root": folder.parent, "base": base}[which]
    path.chmod(0o777)
    why = "not sticky" if which == "base" else "mode 0777"
    assert why in reasons(read_states("run", base=base))[0]
    with pytest.raises(SharedMemoryError, match=why):
        SharedRun.open("run", base=base)
    base.chmod(0o1777)
    if which == "base":
        SharedRun.open("run", base=base).remove()


@pytest.mark.parametrize("which", ["folder", "root"])
def test_a_link_in_the_place_of_a_folder_is_refused(which, base, tmp_path):
    folder = killed(base)
    path = {"folder": folder, "root": folder.parent}[which]
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(path, elsewhere)
    elsewhere.chmod(0o700)
    shutil.rmtree(path)
    path.symlink_to(elsewhere)
    assert "symbolic link" in reasons(read_states("run", base=base))[0]
    with pytest.raises(SharedMemoryError, match="symbolic link"):
        SharedRun.open("run", base=base)


def test_without_shared_memory_it_is_said_why(tmp_path):
    for where, why in ((tmp_path / "none", "No such file"), (tmp_path / "file", "no folder")):
        (tmp_path / "file").touch()
        with pytest.raises(SharedMemoryError, match=why):
            SharedRun.open("run", base=where)

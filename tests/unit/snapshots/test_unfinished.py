"""Checkpoint folders that are being written: whoever is killed loses no whole one, and leaves nothing for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from self_healing.snapshots.unfinished import bring_back, put_in_place, remove_what_was_left, writing

REPLACES = """
import os, signal, sys
from pathlib import Path
from self_healing.snapshots.unfinished import writing

after = int(sys.argv[2])

def hook(event, arguments):
    global after
    if event in ("os.rename", "shutil.rmtree"):
        if not after:
            os.kill(os.getpid(), signal.SIGKILL)
        after -= 1

with writing(Path(sys.argv[1]) / "checkpoint-5") as folder:
    (folder / "weights").write_text("newer")
    sys.addaudithook(hook)
"""
"""Replaces a checkpoint, and is killed by the kernel before the so-manieth rename or removal."""
WRITES = """
import sys, time
from pathlib import Path
from self_healing.snapshots.unfinished import writing

with writing(Path(sys.argv[1]) / "checkpoint-7") as folder:
    print(folder.name, flush=True)
    time.sleep(600)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_at_whatever_moment_of_a_replacement_it_is_killed_a_whole_one_is_found(tmp_path):
    held = []
    while True:
        run = tmp_path / str(len(held))
        with writing(run / "checkpoint-5") as folder:
            (folder / "weights").write_text("older")
        done = subprocess.run([sys.executable, "-c", REPLACES, str(run), str(len(held))], check=False)
        bring_back(run)
        held.append((run / "checkpoint-5" / "weights").read_text())
        remove_what_was_left(run)
        assert names(run) == ["checkpoint-5"]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    # Before each of: a removal of what was put aside by such a number before, two renames, and the removal of both scratch names.
    assert held == ["older"] * 3 + ["newer"] * 3


def test_what_a_living_process_writes_is_left_alone_until_it_is_dead(tmp_path):
    (tmp_path / ".unfinished-notes").mkdir()  # somebody else's
    process = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        name = process.stdout.readline().strip()
        aside = tmp_path / f".unfinished-older-checkpoint-3-{process.pid}"  # it is between its two renames
        aside.mkdir()
        remove_what_was_left(tmp_path)
        assert names(tmp_path) == sorted([name, aside.name, ".unfinished-notes"])
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked how it ended: its number is taken
        with writing(tmp_path / "checkpoint-9") as folder:
            remove_what_was_left(tmp_path)
            assert folder.is_dir(), "this process writes it"
    finally:
        process.kill()
        process.communicate()
    assert names(tmp_path) == [".unfinished-notes", "checkpoint-3", "checkpoint-9"]


def test_what_another_process_of_the_same_number_has_left_is_removed(tmp_path):
    """In a container the first process has the same number every time."""
    (tmp_path / f".unfinished-checkpoint-5-{os.getpid()}").mkdir()
    (tmp_path / ".unfinished-sharded-6" / "sharded").mkdir(parents=True)
    with writing(tmp_path / "checkpoint-5") as folder:
        assert names(folder) == []
    assert names(tmp_path) == ["checkpoint-5"]


def test_where_it_cannot_take_its_place_the_older_one_keeps_it(tmp_path):
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "nowhere", tmp_path / "checkpoint-5")
    assert names(tmp_path) == ["checkpoint-5"]

"""The file by which a supervisor sees that a training gets on; real files, and what may be wrong with them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from self_healing.core.errors import ConfigError
from self_healing.core.goodput import Spending, TimeAccount
from self_healing.core.heartbeat import (
    Doing,
    Heartbeat,
    folder_for,
    heartbeat_path,
    read_heartbeat,
    read_heartbeats,
    remove_leftovers,
    write_heartbeat,
)
from self_healing.core.run_directory import launch_of, run_directory_of

BEAT = Heartbeat(
    pid=4711, host="here", rank=0, attempt=2, started_s=100.5, time_s=200.25, step=17, phase=Doing.SAVING, heals=True,
    run_dir="/runs/a", launch=3,
)  # fmt: skip


def test_what_is_written_is_read_again(tmp_path):
    for told in (BEAT, replace(BEAT, ended="unrecoverable", exit_code=78), replace(BEAT, launch=None, heals=False)):
        write_heartbeat(tmp_path / "not" / "there yet", told)
        assert read_heartbeat(tmp_path / "not" / "there yet") == told


def test_it_is_private_and_leaves_nothing_else_behind(tmp_path):
    write_heartbeat(tmp_path, BEAT)
    path = heartbeat_path(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["heartbeat.json"]
    assert json.loads(path.read_text())["v"] == 1


def test_every_rank_has_a_file_of_its_own(tmp_path):
    for rank in (11, 0, 2):
        write_heartbeat(tmp_path, replace(BEAT, rank=rank, step=rank))
    (tmp_path / "healing" / "heartbeat.rank3.json").write_text("{}")
    assert heartbeat_path(tmp_path, 2).name == "heartbeat.rank2.json"
    assert [(each.rank, each.step) for each in read_heartbeats(tmp_path)] == [(0, 0), (2, 2), (11, 11)]
    assert read_heartbeats(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 60_000, b" " * 70_000, json.dumps({**BEAT.to_json(), "v": 2}).encode(),
     json.dumps({**BEAT.to_json(), "phase": "dreaming"}).encode(), json.dumps({**BEAT.to_json(), "pid": "x"}).encode(),
     json.dumps({key: value for key, value in BEAT.to_json().items() if key != "step"}).encode()],
)  # fmt: skip
def test_what_cannot_be_understood_is_no_heartbeat(content, tmp_path):
    write_heartbeat(tmp_path, BEAT)
    heartbeat_path(tmp_path).write_bytes(content)
    assert read_heartbeat(tmp_path) is None


def test_a_key_of_a_later_version_does_no_harm(tmp_path):
    write_heartbeat(tmp_path, BEAT)
    heartbeat_path(tmp_path).write_text(json.dumps({**BEAT.to_json(), "mood": "fine"}))
    assert read_heartbeat(tmp_path) == BEAT


def test_links_pipes_and_folders_in_its_place_are_not_read(tmp_path):
    write_heartbeat(tmp_path / "other", BEAT)
    path = heartbeat_path(tmp_path)
    path.parent.mkdir()
    path.symlink_to(heartbeat_path(tmp_path / "other"))
    assert read_heartbeat(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_heartbeat(tmp_path) is None, "nobody waits for a writer"
    path.unlink()
    path.mkdir()
    assert read_heartbeat(tmp_path) is None


def test_a_reader_never_sees_half_of_one(tmp_path):
    write_heartbeat(tmp_path, BEAT)
    is_over, seen = threading.Event(), set()

    def read():
        while not is_over.is_set():
            found = read_heartbeat(tmp_path)
            seen.add(found.step if found is not None else None)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(2000):
        write_heartbeat(tmp_path, replace(BEAT, step=step, run_dir="/" + "x" * (step % 500)))
    is_over.set()
    reader.join()
    assert None not in seen
    assert len(seen) > 1


def test_one_that_an_earlier_process_has_left_is_recognised():
    assert BEAT.is_new([])
    assert not BEAT.is_new([replace(BEAT, step=3, time_s=120.0)]), "it was there before the attempt began"
    assert BEAT.is_new([replace(BEAT, started_s=5000.5)]), "also where the clock has gone back since"
    assert BEAT.is_new([replace(BEAT, pid=4710)], launch=3)
    assert not BEAT.is_new([], launch=4)
    assert replace(BEAT, launch=None).is_new([], launch=4), "whoever cleans the environment is believed"


def test_only_a_training_that_runs_is_looked_after():
    assert BEAT.heals_now
    assert not replace(BEAT, ended="completed").heals_now
    assert not replace(BEAT, heals=False).heals_now


def test_what_a_killed_writer_left_half_written_is_removed(tmp_path):
    write_heartbeat(tmp_path, BEAT)
    left = tmp_path / "healing" / ".heartbeat.json.99.tmp"
    of_another = tmp_path / "healing" / ".heartbeat.rank1.json.99.tmp"
    for path in (left, of_another):
        path.write_text("{")
        os.utime(path, (50.0, 50.0))
    remove_leftovers(tmp_path, 0, older_than_s=40.0)
    assert left.exists(), "it may still be written"
    remove_leftovers(tmp_path, 0, older_than_s=60.0)
    assert not left.exists()
    assert of_another.exists()


def test_a_folder_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "healing").write_text("a file in its place")
    with pytest.raises(OSError, match=r"healing"):
        write_heartbeat(tmp_path, BEAT)
    assert [each.name for each in tmp_path.iterdir()] == ["healing"]


def test_the_supervisor_says_where_and_for_which_time(tmp_path):
    named = {"SELF_HEALING_RUN_DIR": str(tmp_path), "SELF_HEALING_ATTEMPT": "3"}
    assert (run_directory_of(named), launch_of(named)) == (tmp_path, 3)
    assert folder_for(named, "out") == tmp_path
    assert folder_for({}, "out") == Path("out")
    for odd in ({}, {"SELF_HEALING_RUN_DIR": " ", "SELF_HEALING_ATTEMPT": "-1"}, {"SELF_HEALING_ATTEMPT": "9" * 5000}):
        assert (run_directory_of(odd), launch_of(odd)) == (None, None)


def test_whoever_names_no_run_directory_gets_that_of_the_supervisor(tmp_path):
    from self_healing import HealingConfig
    from self_healing.api import OpenRun

    with OpenRun(None, HealingConfig(), object(), environ={"SELF_HEALING_RUN_DIR": str(tmp_path)}):
        assert (tmp_path / "healing" / "ledger.jsonl").exists()
    with pytest.raises(ConfigError, match=r"SELF_HEALING_RUN_DIR"):
        OpenRun(None, HealingConfig(), object(), environ={})


def test_an_account_says_what_is_done_and_when_it_last_got_on():
    now = [10.0]
    account = TimeAccount(lambda: now[0])
    assert (account.spends_on, account.settled_s, account.has_done_a_step) == (Spending.START_UP, 10.0, False)
    account.steps_begin(0)
    now[0] = 12.0
    account.step_done(1)
    assert (account.spends_on, account.settled_s, account.has_done_a_step) == (Spending.PRODUCTIVE, 12.0, True)
    with account.spent_on(Spending.EVALUATING):
        now[0] = 20.0
        account.still_there()
        assert (account.spends_on, account.settled_s) == (Spending.EVALUATING, 20.0)
    assert account.seconds()[Spending.EVALUATING] == 8.0


def test_the_reader_needs_no_framework():
    code = (
        "import sys; import self_healing.core.heartbeat;"
        "assert not {'torch', 'numpy', 'transformers', 'pydantic'} & sys.modules.keys(), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""How a loop of one's own is left before its end, and what it can be told to go on from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from self_healing.drills.disk_faults import CannotMountError, cut_short, small_disk

from .killed_loop import PER_EPOCH
from .killed_training import gone_on, killed, notes
from .test_plain_loop_going_on import ON_DISK, assert_same

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
ON_DISK_ALONE = {"config": {"shared_memory": False}}
"""Else the state in shared memory would be gone on from, which is as new."""


def checkpoints(folder):
    return sorted((path.name for path in folder.glob("checkpoint-*")), key=lambda name: int(name.split("-")[1]))


def ended(folder):
    return json.loads((folder / "postmortem.json").read_text())["exit_reason"]


# -- what is gone on from --------------------------------------------------------------------------------


def test_a_checkpoint_that_is_damaged_is_passed_over(loops, bare_loops, tmp_path):
    killed(loops, tmp_path, "body", 7, **ON_DISK)
    assert checkpoints(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    cut_short(tmp_path / "checkpoint-6" / "pytorch_model.bin")
    result = gone_on(loops, tmp_path, **ON_DISK)
    assert_same(result, bare_loops())
    assert result["first"] == 4
    (told,) = notes(tmp_path, "resuming")
    assert "checkpoint-6" in told


def test_what_a_kill_in_a_save_has_left_is_removed(loops, bare_loops, tmp_path):
    killed(loops, tmp_path, "saving", 6, **ON_DISK)
    assert list(tmp_path.glob(".unfinished-checkpoint-6-*/optimizer.pt"))
    result = gone_on(loops, tmp_path, **ON_DISK)
    assert_same(result, bare_loops())
    assert result["first"] == 4
    assert not list(tmp_path.glob(".unfinished*"))


def test_a_run_can_be_started_over(loops, bare_loops, tmp_path):
    killed(loops, tmp_path, "body", 7, **ON_DISK)
    result = gone_on(loops, tmp_path, resume=False, **ON_DISK)
    assert_same(result, bare_loops())
    assert result["first"] == 0


@pytest.mark.parametrize(("form", "accumulate", "block"), [(1, 1, 0), (3, 1, 0), (1, 2, 0), (1, 2, 1), (2, 2, 1)])
def test_after_an_exception_it_goes_on_where_that_is_asked_for(form, accumulate, block, loops, bare_loops, tmp_path):  # noqa: PLR0917
    """An exception is for a person to look at: nothing is gone on with by itself."""
    job = {"form": form, "accumulate": accumulate}
    result = loops.run(tmp_path, kill=["raises", 7, block], **job, **ON_DISK_ALONE)
    assert "a bug of the user's" in result["error"]
    assert checkpoints(tmp_path) == ["checkpoint-7"]
    assert ended(tmp_path) == "exception"
    result = gone_on(loops, tmp_path, resume="auto", **job, **ON_DISK_ALONE)
    assert_same(result, bare_loops(**job))
    assert result["first"] == 7


def test_a_checkpoint_can_be_named(loops, bare_loops, tmp_path):
    gone_on(loops, tmp_path, **ON_DISK)
    result = gone_on(loops, tmp_path, resume=str(tmp_path / "checkpoint-4"), **ON_DISK)
    assert_same(result, bare_loops())
    assert result["first"] == 4


def test_a_path_that_is_no_checkpoint_is_refused(loops, tmp_path):
    result = loops.run(tmp_path, resume=str(tmp_path / "nowhere"))
    assert "ConfigError" in result["error"]
    assert "nowhere" in result["error"]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_another_model_is_refused_with_what_differs(where, loops, tmp_path):
    how = ON_DISK if where == "disk" else {}
    killed(loops, tmp_path, "body", 7, **how)
    result = loops.run(tmp_path, width=12, **how)
    assert "ConfigError" in result["error"]
    assert "0.weight" in result["error"]
    assert "guard(resume=False)" in result["error"]
    gone_on(loops, tmp_path, resume=False, width=12)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_another_batch_size_is_refused(where, loops, bare_loops, tmp_path):
    how = ON_DISK if where == "disk" else {}
    killed(loops, tmp_path, "body", 7, **how)
    result = loops.run(tmp_path, batch_size=2, **how)
    assert "ConfigError" in result["error"]
    assert "batch_size is 2 and was 4" in result["error"]
    assert "guard(resume=False)" in result["error"]
    result = gone_on(loops, tmp_path, **how)
    assert_same(result, bare_loops())


# -- signals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [1, 3])
@pytest.mark.parametrize("at", [3, PER_EPOCH, *(pytest.param(at, marks=pytest.mark.soak) for at in (8, 3 * PER_EPOCH))])
def test_a_machine_that_is_taken_away_leaves_the_last_step_on_disk(at, form, loops, bare_loops, tmp_path):
    """Also where that is the last one of an epoch, and of the run."""
    result = loops.run(tmp_path, kill=["SIGTERM", at], form=form, **ON_DISK_ALONE)
    assert result == {"exit": 75}
    assert checkpoints(tmp_path) == [f"checkpoint-{at}"]
    assert ended(tmp_path) == "sigterm"
    assert 'guard(resume="auto")' in (tmp_path / "output.txt").read_text()
    result = gone_on(loops, tmp_path, form=form, **ON_DISK_ALONE)
    assert_same(result, bare_loops(form=form))
    assert result["first"] == (at if at < 3 * PER_EPOCH else None)


def test_a_signal_between_two_blocks_of_an_update_waits_for_the_update(loops, bare_loops, tmp_path):
    result = loops.run(tmp_path, kill=["SIGTERM", 3], accumulate=2, **ON_DISK_ALONE)
    assert result == {"exit": 75}
    result = gone_on(loops, tmp_path, accumulate=2, **ON_DISK_ALONE)
    assert_same(result, bare_loops(accumulate=2))


def test_a_warning_has_it_saved_and_goes_on(loops, bare_loops, tmp_path):
    result = gone_on(loops, tmp_path, kill=["SIGUSR1", 6], config={"preemption_signals": ["SIGTERM"]})
    assert_same(result, bare_loops())
    assert checkpoints(tmp_path) == ["checkpoint-6"]


def test_a_person_at_the_keyboard_ends_it_with_a_checkpoint(loops, bare_loops, tmp_path):
    result = loops.run(tmp_path, kill=["SIGINT", 6], **ON_DISK_ALONE)
    assert "KeyboardInterrupt" in result["error"]
    assert checkpoints(tmp_path) == ["checkpoint-6"]
    assert ended(tmp_path) == "sigint"
    result = gone_on(loops, tmp_path, resume="auto", **ON_DISK_ALONE)
    assert_same(result, bare_loops())
    assert result["first"] == 6


@pytest.mark.parametrize("kind", ["shuffled", "average", "no schedule"])
def test_a_step_that_does_not_end_in_time_is_left_behind(kind, loops, bare_loops, tmp_path):
    result = loops.run(tmp_path, kill=["hangs", 8], config={"grace_seconds": 1.0}, kind=kind)
    assert os.waitstatus_to_exitcode(loops.status) == 75, result
    assert checkpoints(tmp_path) == ["checkpoint-6"], "the newest state in memory"
    result = gone_on(loops, tmp_path, kind=kind, config={"shared_memory": False})
    assert_same(result, bare_loops(kind=kind))
    assert result["first"] == 6


@pytest.mark.parametrize(("form", "kind"), [(1, "shuffled"), (3, "shuffled"), (1, "no schedule")])
def test_a_device_that_is_lost_ends_the_process_with_its_newest_state_on_disk(form, kind, loops, bare_loops, tmp_path):
    result = loops.run(tmp_path, kill=["device", 8], form=form, kind=kind)
    assert result == {"exit": 77}
    assert checkpoints(tmp_path) == ["checkpoint-6"]
    assert ended(tmp_path) == "device_lost"
    result = gone_on(loops, tmp_path, resume="auto", form=form, kind=kind, config={"shared_memory": False})
    assert_same(result, bare_loops(form=form, kind=kind))
    assert result["first"] == 6


# -- disks -----------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_ends_no_loop(loops, bare_loops, tmp_path):
    folder = tmp_path / "small"
    try:
        with small_disk(folder, 220_000):
            result = gone_on(loops, folder, width=512, **ON_DISK)
            assert_same(result, bare_loops(width=512))
            assert "healing/checkpoints_not_written" in (folder / "postmortem.json").read_text()
            assert not [path for path in Path(folder).iterdir() if path.name.startswith(".unfinished")]
    except CannotMountError as error:
        pytest.skip(str(error))


def test_a_loop_that_could_save_nothing_says_how_a_loop_is_gone_on_with(loops, tmp_path):
    folder = tmp_path / "small"
    try:
        with small_disk(folder, 200_000):
            gone_on(loops, folder, width=512, save_every=2)
            (told,) = notes(folder, "checkpoints-not-written")
    except CannotMountError as error:
        pytest.skip(str(error))
    assert 'is left in shared memory, for a day at most: make room, and guard(resume="auto") goes on from it' in told

"""The same script is started again after its process was killed: the run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil

import pytest

from self_healing.snapshots.shared_folder import root_path, run_name

from .killed_training import EVERY, ON_DISK, SAVING, assert_same, gone_on, killed, notes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def nothing_is_left(own_shared_memory):
    yield
    assert list(own_shared_memory.iterdir()) == []


# -- killed between two steps ----------------------------------------------------------------------------

KINDS = [
    "dropout",
    "accumulation-4",
    "lora",
    "changing-buffers",
    "scheduler-and-sgd",
    "finite-stream",
    "sft",
    "dpo",
    "grpo",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_ends_as_if_nothing_had_happened(kind, trainings, undisturbed, tmp_path):
    """Killed in the second epoch, in the middle of two states; weights and log are compared."""
    killed(trainings, tmp_path, "step", 8, kind=kind)
    assert not (tmp_path / "postmortem.json").exists()
    result = gone_on(trainings, tmp_path, kind=kind)
    assert_same(result, undisturbed(kind))
    assert result["first"] == 6
    (told,) = notes(tmp_path, "resuming")
    assert told.startswith("training goes on after step 6 from shared memory")
    postmortem = json.loads((tmp_path / "postmortem.json").read_text())
    assert (postmortem["exit_reason"], len(postmortem["attempts"])) == ("completed", 2)


def kill_again_and_again(trainings, folder, times, draw, **job):
    """Kill a run at so many random steps, which may be steps that it has been at before; return the last one."""
    at = 0
    for _ in range(times):
        earliest = (at - 1) // EVERY * EVERY + 1 if at else 1
        at = draw.randint(earliest, min(at + 4, 12))
        killed(trainings, folder, "step", at, **job)
    return at


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_killed_five_times_at_random_steps(where, trainings, undisturbed, tmp_path):
    job = ON_DISK if where == "disk" else {}
    at = kill_again_and_again(trainings, tmp_path, 5, random.Random(11), **job)
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed())
    assert at - result["first"] <= EVERY


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", ["dropout", "sft", "dpo"])
def test_killed_a_hundred_times(kind, where, trainings, undisturbed, tmp_path):
    draw = random.Random(kind)
    for number in range(17):
        job = {**(ON_DISK if where == "disk" else {}), "kind": kind}
        folder = tmp_path / str(number)
        at = kill_again_and_again(trainings, folder, 6, draw, **job)
        result = gone_on(trainings, folder, **job)
        assert_same(result, undisturbed(kind))
        assert at - result["first"] <= EVERY


def test_data_that_were_left_out_stay_out(trainings, tmp_path):
    job = {"kind": "in order", "steps": 11}
    expected = gone_on(trainings, tmp_path / "whole", leaves_out=True, **job)
    killed(
        trainings, tmp_path / "killed", "step, the second time", 4, leaves_out=True, **job
    )  # right behind the return
    assert_same(gone_on(trainings, tmp_path / "killed", **job), expected)
    assert expected["weights"] != gone_on(trainings, tmp_path / "all", **job)["weights"]


# -- killed at awkward moments ---------------------------------------------------------------------------

EVALUATING = {"eval_strategy": "steps", "eval_steps": 4, **SAVING}
MOMENTS = {
    "a state has its memory and no index yet": ("system", "os.rename", ".state-", 2),
    "the index of a state is about to be withdrawn": ("system", "os.remove", ".state-", 1),
    "memory for a state is asked for": ("system", "open", ".block-", 3),
    "the first file of a checkpoint is about to be written": ("system", "open", "checkpoint-6/", 1),
    "the last file of a checkpoint is about to be written": ("system", "open", "checkpoint-6/trainer_state.json", 1),
    "an evaluation": ("evaluation", 8),
}


OF_MEMORY_ALONE = tuple(moment for moment, kill in MOMENTS.items() if kill[2:3] in ((".state-",), (".block-",)))


@pytest.mark.parametrize(
    ("moment", "where"),
    [(moment, "memory") for moment in MOMENTS]
    + [(moment, "disk") for moment in MOMENTS if moment not in OF_MEMORY_ALONE],
)
def test_killed_at_an_awkward_moment(moment, where, trainings, undisturbed, tmp_path):
    job = {"changes": EVALUATING, "config": {"shared_memory": where == "memory"}}
    killed(trainings, tmp_path, *MOMENTS[moment], **job)
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed(changes=EVALUATING))


RESUMING = {
    "a state is being compared with its checksums": ("system", "open", ".block-", 1),
    "a state is being filled in": ("system", "open", ".block-", 30),
    "the new process has published its first state": ("system", "os.rename", ".state-", 1),
    "what the old process left is about to be removed": ("system", "os.remove", ".state-", 1),
}


@pytest.mark.parametrize("moment", RESUMING)
def test_killed_while_it_resumes(moment, trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8)
    killed(trainings, tmp_path, *RESUMING[moment])
    result = gone_on(trainings, tmp_path)
    assert_same(result, undisturbed())
    assert result["first"] == 6


# -- what is left was harmed -----------------------------------------------------------------------------


def folder_of(tmp_path):
    return root_path() / run_name(tmp_path)


def newest_index(tmp_path):
    found = {
        path: json.loads(path.read_text().split("\n", 1)[1]) for path in folder_of(tmp_path).glob("*.state-*.json")
    }
    return max(found.items(), key=lambda each: each[1]["step"])


def harm(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def test_a_state_that_was_harmed_is_passed_over(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 12, config={"good_after": 3})
    newest, index = newest_index(tmp_path)
    harm(newest.parent / index["blocks"][0]["file"])
    result = gone_on(trainings, tmp_path)
    assert_same(result, undisturbed())
    assert result["first"] == 6
    (told,) = notes(tmp_path, "resuming")
    assert "the checksum of slice" in told


@pytest.mark.parametrize("saves", [True, False])
def test_where_all_of_shared_memory_was_harmed_the_next_source_is_used(saves, trainings, undisturbed, tmp_path):
    job = {"changes": SAVING if saves else {}}
    killed(trainings, tmp_path, "step", 8, **job)
    for path in folder_of(tmp_path).glob("*.json"):
        path.write_bytes(path.read_bytes()[:-100])
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed())
    assert result["first"] == (6 if saves else 0)
    (told,) = notes(tmp_path, "resuming")
    assert told.startswith("checkpoint-6 is resumed from" if saves else "no checkpoint is resumed from")
    assert "bytes where" in told


# -- another configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size is 4 and was 8"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2 and was 1"),
        ({"optim": "sgd"}, "the optimizer is SGD and was AdamW"),
    ],
)
def test_what_was_changed_meanwhile_is_named_and_can_be_put_back(change, said, trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8)
    error = trainings.run(tmp_path, changes=change)["error"]
    assert "ConfigError" in error
    assert said in error
    result = gone_on(trainings, tmp_path)  # nothing was lost by it
    assert_same(result, undisturbed())
    assert result["first"] == 6


def test_what_was_changed_meanwhile_is_named_where_only_disk_is_left(trainings, undisturbed, tmp_path):
    assert trainings.run(tmp_path, kill=("terminated", 8), config={"shared_memory": False}) == {"exit": 75}
    error = trainings.run(tmp_path, changes={"per_device_train_batch_size": 4})["error"]
    assert "per_device_train_batch_size is 4 and was 8" in error
    result = gone_on(trainings, tmp_path)
    assert_same(result, undisturbed())
    assert result["first"] == 8


def test_other_data_and_another_model_are_named(trainings, tmp_path):
    killed(trainings, tmp_path, "step", 8)
    for kind, said in (
        ("accumulation-4", "the number of training records is 152 and was 40"),
        ("changing-buffers", "is new"),
    ):
        assert said in trainings.run(tmp_path, kind=kind, changes={"gradient_accumulation_steps": 1})["error"]
    gone_on(trainings, tmp_path, resume=False)


def test_a_run_that_is_to_start_over_does(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, changes=SAVING)
    result = gone_on(trainings, tmp_path, resume=False)
    assert_same(result, undisturbed())
    assert result["first"] == 0
    assert notes(tmp_path, "resuming") == []


def test_a_run_that_has_ended_is_not_gone_on_with(trainings, undisturbed, tmp_path):
    for _ in range(2):
        result = gone_on(trainings, tmp_path, changes=SAVING)
        assert_same(result, undisturbed())
        assert result["first"] == 0


def test_checkpoints_of_an_earlier_run_in_the_folder_are_not_this_runs(trainings, undisturbed, tmp_path):
    gone_on(trainings, tmp_path, changes=SAVING)
    killed(trainings, tmp_path, "step", 2, config={"shared_memory": False}, changes=SAVING)
    result = gone_on(trainings, tmp_path, changes=SAVING)
    assert_same(result, undisturbed())
    assert result["first"] == 0


def test_a_clock_that_went_back_makes_checkpoints_no_other_runs(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, **ON_DISK)
    for path in tmp_path.glob("checkpoint-*/trainer_state.json"):
        os.utime(path, (1e9, 1e9))
    result = gone_on(trainings, tmp_path, **ON_DISK)
    assert_same(result, undisturbed())
    assert result["first"] == 6


def test_more_steps_may_be_asked_for(trainings, tmp_path):
    killed(trainings, tmp_path, "step", 8)
    result = gone_on(trainings, tmp_path, steps=15)
    assert (result["first"], result["step"]) == (6, 15)


def test_a_step_that_was_taken_over_from_memory_is_not_on_disk(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8)
    assert "gives up" in trainings.run(tmp_path, kill=("gives up", 6))["error"]
    assert notes(tmp_path, "emergency") == ["checkpoint-6 was written"]
    shutil.rmtree(root_path())  # as with another machine
    result = gone_on(trainings, tmp_path, resume="auto")
    assert_same(result, undisturbed())
    assert result["first"] == 6


@pytest.mark.parametrize("job", [{}, ON_DISK])
def test_arguments_that_a_state_brings_along_are_told_where_they_are_others_now(job, trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, **job)
    changes = {**job.get("changes", {}), "learning_rate": 0.5, "seed": 5}
    result = gone_on(trainings, tmp_path, **{**job, "changes": changes})
    assert [entry["learning_rate"] for entry in result["log"] if "learning_rate" in entry] == [
        entry["learning_rate"] for entry in undisturbed()["log"] if "learning_rate" in entry
    ], "as a stock resume: optimizer and scheduler are put back"
    (told,) = notes(tmp_path, "resuming")
    assert "learning_rate is 0.5 and was 0.0" in told
    assert "the optimizer goes on with what it had; seed is 5 and was " in told
    assert "in another order" in told


@pytest.mark.parametrize("resume", [None, "auto"])
def test_where_the_last_step_is_on_disk_none_is_trained_too_many(resume, trainings, undisturbed, tmp_path):
    job = {"config": {"shared_memory": False}}
    assert trainings.run(tmp_path, kill=("terminated", 13), **job) == {"exit": 75}
    result = gone_on(trainings, tmp_path, resume=resume, **job)
    assert_same(result, undisturbed())
    assert result["first"] is None
    assert "it holds all 13 steps that are asked for, and none is trained" in notes(tmp_path, "resuming")[0]


def test_fewer_steps_than_were_trained_are_named(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, **ON_DISK)
    error = trainings.run(tmp_path, steps=2, **ON_DISK)["error"]
    assert "ConfigError" in error
    assert "max_steps is 2, and checkpoint-6 holds more steps already" in error
    assert_same(gone_on(trainings, tmp_path, **ON_DISK), undisturbed())


@pytest.mark.parametrize("resume", ["auto", True])
def test_shared_memory_is_looked_at_where_resuming_is_asked_for(resume, trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, changes=SAVING)
    (tmp_path / "checkpoint-9").mkdir()
    result = gone_on(trainings, tmp_path, changes=SAVING, resume=resume)
    assert_same(result, undisturbed())
    told = notes(tmp_path, "resuming")[0]
    assert told.startswith("training goes on after step 6 from shared memory")
    assert "; passed over: checkpoint-9: trainer_state.json is missing" in told


def test_a_run_whose_machine_is_taken_away_goes_on_where_it_saved(trainings, undisturbed, tmp_path):
    assert trainings.run(tmp_path, kill=("terminated", 8)) == {"exit": 75}
    result = gone_on(trainings, tmp_path)
    assert_same(result, undisturbed())  # the entry of the step that was saved among the log's
    assert result["first"] == 8
    assert notes(tmp_path, "resuming") == ["checkpoint-8 is resumed from"]


@pytest.mark.parametrize("saves", [True, False])
def test_a_state_that_is_lost_while_it_is_taken_over_leaves_no_trace(saves, trainings, undisturbed, tmp_path):
    job = {"changes": SAVING if saves else {}}
    killed(trainings, tmp_path, "step", 8, **job)
    result = trainings.run(tmp_path, kill=("memory is taken away", 0), **job)
    if saves:
        assert_same(result, undisturbed())
        assert "could not be read to its end" in notes(tmp_path, "resuming")[-1]
    else:
        assert "could not be read to its end" in result["error"]
        assert not list(tmp_path.glob("checkpoint-*"))  # of what was half filled in
        assert_same(gone_on(trainings, tmp_path), undisturbed())

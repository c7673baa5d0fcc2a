"""Real ranks over gloo: one plan for all, nothing on the training's group, and whoever stops answering is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.core.ledger import read_ledger

from .ranks_together import SCENARIOS

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run all scenarios at once, in one launch."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("ranks_together.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SELF_HEALING")}
    done = subprocess.run(
        [sys.executable, script, folder], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    return folder


def rank(folder, scenario, number):
    return json.loads((folder / scenario / f"rank-{number}.json").read_text())


def end(folder, scenario):
    return json.loads((folder / scenario / "end.json").read_text())


def notes(folder, scenario, number=0):
    name = "ledger.jsonl" if number == 0 else f"ledger.rank{number}.jsonl"
    entries = read_ledger(folder / scenario / "healing" / name).entries
    return {entry.name: entry for entry in entries if entry.kind == "note"}


def test_all_ranks_vote_at_the_same_steps_and_do_the_same(ran):
    first, second = rank(ran, "votes", 0), rank(ran, "votes", 1)
    assert first["error"] is second["error"] is None
    assert first["votes"] == second["votes"]
    assert [step for step, *_ in first["votes"]] == [4, 8, 11, 12, 16, 20, 24]
    assert first["done"] == second["done"] == ["tighten_clipping", "rewarm_learning_rate"]
    assert [plans for _, plans, *_ in first["votes"] if plans] == [["tighten-clipping+rewarm-learning-rate"]]


def test_the_latest_of_the_wished_steps_is_when_all_take_a_state_and_only_common_ones_are_returned_to(ran):
    votes = {step: (takes, states) for step, _, takes, states in rank(ran, "votes", 0)["votes"]}
    assert next(step for step, (takes, _) in votes.items() if takes) == 11  # the ranks wish for 10 and 11
    assert all(states == [0, 8] for _, states in votes.values())


def test_nothing_is_added_to_the_trainings_group_and_all_ranks_make_the_same_collectives(ran):
    first, second = rank(ran, "votes", 0), rank(ran, "votes", 1)
    assert first["collectives"] == second["collectives"]
    assert first["joined"] == second["joined"]
    assert {place for _, place in first["joined"]} == {"side"}
    assert first["collectives"].count(["all_reduce", "training"]) == 24
    assert [each for each in first["collectives"] if each[1] == "training"] == [["all_reduce", "training"]] * 24
    assert first["exchanges"] == second["exchanges"]


def test_the_slowest_rank_is_told_to_all(ran):
    for number in (0, 1):
        assert rank(ran, "votes", number)["figures"] == {"slowest_rank": 1.0, "slowest_rank_ratio": 2.0}


def test_a_rank_that_goes_on_is_named_by_nobody(ran):
    assert "rank-absent" not in notes(ran, "votes", 0) | notes(ran, "votes", 1)


@pytest.mark.parametrize(("scenario", "absent", "tells"), [("stopped", 1, (0,)), ("first-stopped", 0, (1, 2))])
def test_a_stopped_rank_is_named_with_its_stack_and_the_others_leave(ran, scenario, absent, tells):
    ended, interval_s = end(ran, scenario), SCENARIOS[scenario].interval_s
    for number in tells:
        told = notes(ran, scenario, number)
        assert told["rank-absent"].body["text"].startswith(f"rank {absent}: its process is stopped (SIGSTOP)")
        assert told["rank-absent"].time - ended["sent_s"] < 3 * interval_s
        assert "ranks_together.py" in told["rank-absent-stood"].body["text"]
    left = [number for number in tells if "hang" in notes(ran, scenario, number)]
    assert left, "where one has left, the collective of another may fail before it leaves by itself"
    assert all(ended["codes"][number] for number in tells)
    for number in left:
        assert "waits in vain" in notes(ran, scenario, number)["hang"].body["text"]
        assert ended["codes"][number] == 76
        (stacks,) = (ran / scenario / "healing").glob(f"stacks.rank{number}.*.txt")
        assert "distributed_c10d.py" in stacks.read_text()  # in the step, or in the vote at its end
    outside, *_ = (ran / scenario / "healing").glob(f"stacks.absent-rank{absent}.*.txt")  # whoever is left writes one
    assert "state stopped" in outside.read_text()


def test_whoever_leaves_says_so_to_a_supervisor(ran):
    beat = json.loads((ran / "stopped" / "healing" / "heartbeat.json").read_text())
    assert (beat["ended"], beat["exit_code"]) == ("hang", 76)
    assert json.loads((ran / "stopped" / "postmortem.json").read_text())["exit_reason"] == "hang"


def test_a_killed_rank_is_named_within_an_interval(ran):
    told = notes(ran, "killed")["rank-absent"]
    assert told.body["text"].startswith("rank 1: its process is gone")
    assert told.time - end(ran, "killed")["sent_s"] < SCENARIOS["killed"].interval_s
    assert end(ran, "killed")["codes"][0] in (1, 76)


def test_where_plans_are_only_shown_a_hang_is_told_and_nobody_leaves(ran):
    told = notes(ran, "advised")
    assert told["rank-absent"].body["text"].startswith("rank 1: its process is stopped")
    assert "hang" not in told
    assert end(ran, "advised")["codes"] == [0, 0]
    assert rank(ran, "advised", 0)["error"] is rank(ran, "advised", 1)["error"] is None


def test_a_rank_that_was_stopped_itself_names_nobody_when_it_goes_on(ran):
    assert "rank-absent" not in notes(ran, "advised", 1)


def test_a_rank_that_fails_alone_finds_that_out_without_touching_the_trainings_group(ran):
    told = rank(ran, "fails-alone", 1)
    assert told["error"].startswith("RuntimeError: out of memory")
    assert told["have_all_failed"] is False
    assert told["collectives"][-1] == ["all_gather", "side"]
    assert "failed-alone" in notes(ran, "fails-alone", 1)
    assert 0 not in end(ran, "fails-alone")["codes"]


def test_without_the_check_a_vote_runs_out_of_time_and_names_who_did_not_come(ran):
    told = rank(ran, "unchecked", 0)
    assert told["error"].startswith("RanksParted: rank 1 did not come")
    assert told["parted"] == [1]
    assert "rank-absent" not in notes(ran, "unchecked")

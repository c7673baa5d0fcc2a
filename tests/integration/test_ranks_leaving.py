"""Ranks that are asked to end, and ranks that go on as fewer: one checkpoint of all, and the run goes on from it."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from .rank_launcher import launch  # noqa: E402

PREEMPTED = 75
KINDS = [pytest.param("ddp", marks=pytest.mark.soak), "fsdp2"]
"""One of them in each run of the suite: they differ in what a checkpoint is made of, which FSDP2 has more of."""


def job(folder, kind, *more):
    return ["--out", str(folder), "--kind", kind, "--no-shared-memory", *more]


def result(folder, rank=0):
    return torch.load(folder / f"rank-{rank}.pt", weights_only=False)


def largest_difference(one, other):
    return max(float((value - other["weights"][name]).abs().max()) for name, value in one["weights"].items())


def notes(folder, rank=0):
    path = folder / "healing" / ("ledger.jsonl" if rank == 0 else f"ledger.rank{rank}.jsonl")
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return [entry["body"].get("text", "") for entry in entries if entry["kind"] == "note"]


@pytest.mark.parametrize("kind", KINDS)
def test_four_ranks_that_were_killed_go_on_as_two_with_as_many_rows_in_an_update(kind, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    killed = launch(tmp_path / "a", job(whole, kind), job(run, kind, "--save-every", "4", "--die-at", "10"), world=4)
    assert not killed.is_done
    (run / "checkpoint-9").mkdir()
    told = launch(tmp_path / "b", job(run, kind, "--save-every", "4"))
    assert told.is_done, (tmp_path / "b" / "output-0-0.txt").read_text()[-3000:]
    expected, found = result(whole), result(run)
    assert found["steps"] == expected["steps"] == 18
    assert largest_difference(expected, found) < 1e-6
    assert any("4 processes have become 2: 2 micro-batches make an update" in text for text in notes(run))
    assert any(text.startswith("passed over: checkpoint-9: trainer_state.json is missing") for text in notes(run))
    # Each update is of two micro-batches: the mean of their losses, over both ranks, is the mean over four ranks before.
    of_two = torch.tensor([result(run, rank)["losses"] for rank in (0, 1)]).reshape(2, -1, 2).mean((0, 2))
    of_four = torch.tensor([result(whole, rank)["losses"] for rank in range(4)]).mean(0)
    assert torch.allclose(of_two, of_four[-len(of_two) :], atol=1e-5)
    assert len(of_two) in (10, 14), "from step 8 on, or from 4 where what was written meanwhile was not whole yet"


@pytest.mark.parametrize(("kind", "fault"), [("ddp", "term-all"), ("fsdp2", "term")])
def test_a_signal_to_all_or_to_one_has_all_save_the_same_step_and_leave(kind, fault, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    asked = launch(tmp_path / "a", job(whole, kind, "--bare"), job(run, kind, "--fault", fault), grace_s=20.0)
    assert asked.codes == [[PREEMPTED, PREEMPTED]]
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-16"]
    assert launch(tmp_path / "b", job(run, kind)).is_done
    assert any("goes on at checkpoint-16, which 2 processes have written" in text for text in notes(run))
    assert result(run)["steps"] == 36
    assert largest_difference(result(whole), result(run)) == 0.0


def test_a_step_that_does_not_end_in_time_leaves_a_checkpoint_from_memory_that_all_go_on_from(tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    long = job(run, "ddp", "--fault", "term-long", "--grace", "3")
    asked = launch(tmp_path / "a", job(whole, "ddp", "--bare"), long)
    assert asked.codes[0][0] == PREEMPTED
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-12"]
    told = launch(tmp_path / "b", job(run, "ddp"))
    assert told.is_done, (tmp_path / "b" / "output-0-0.txt").read_text()[-3000:]
    assert any("goes on at checkpoint-12, which one of 2 processes has written" in text for text in notes(run))
    assert largest_difference(result(whole), result(run)) == 0.0

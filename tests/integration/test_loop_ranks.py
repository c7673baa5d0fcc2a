"""A guarded loop on two ranks, with DistributedDataParallel and with FSDP2: one decision everywhere, or a clean restart."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
from .rank_launcher import launch  # noqa: E402

KINDS = ("ddp", "fsdp2")
IN_PLACE = ("nan", "record", "jump", "weight")
"""What is healed without any process being started again."""
AT_THE_END = ("jump", "weight")
SAVED = {"jump": ("--save-every", "5")}
"""The jump comes before step 15, and that step is saved."""
STEPS = 36


def job(folder, kind, fault="", *more):
    return ["--out", str(folder), "--kind", kind, *(["--fault", fault] if fault else []), *more]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """All that needs no restart, on one pair of ranks."""
    folder = tmp_path_factory.mktemp("together")
    jobs = []
    for kind in KINDS:
        jobs.append(job(folder / f"{kind}-bare", kind, "", "--bare", "--count"))
        jobs.append(job(folder / f"{kind}-clean", kind, "", "--count"))
        jobs += [job(folder / f"{kind}-{fault}", kind, fault, *SAVED.get(fault, ())) for fault in IN_PLACE]
        jobs += [job(folder / f"{kind}-{fault}-last", kind, fault, "--at", str(STEPS - 2)) for fault in AT_THE_END]
    jobs += [
        job(folder / "ddp-oom-forward", "ddp", "oom-forward"),
        job(folder / "ddp-row", "ddp", "row"),
        job(folder / "fsdp2-oom-everywhere", "fsdp2", "oom-everywhere"),
    ]
    told = launch(folder, *jobs, patience_s=300.0)  # eighteen trainings, also on a machine that others use
    assert told.is_done, (told.codes, (folder / "output-0-1.txt").read_text()[-3000:])
    return folder


def results(folder):
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in (0, 1)]


def ledger(folder, rank=0):
    path = folder / "healing" / ("ledger.jsonl" if rank == 0 else f"ledger.rank{rank}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_all_are_at(folder, bare, *, exactly=True, nearly=None):
    first, second = results(folder)
    assert first["steps"] == second["steps"] == STEPS
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), f"{name} differs between the ranks"
        assert bool(torch.isfinite(value).all())
        if exactly:
            assert torch.equal(value, bare["weights"][name]), f"{name} is not what it is without the fault"
        if nearly is not None:
            assert torch.allclose(value, bare["weights"][name], rtol=0.0, atol=nearly)


def plans(folder, rank):
    """What a rank has carried out, and at which step: the plan's own words."""
    return [(entry["step"], entry["name"]) for entry in ledger(folder, rank) if entry["kind"] == "outcome"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_clean_run_is_the_bare_loop_to_the_bit(together, kind):
    assert_all_are_at(together / f"{kind}-clean", results(together / f"{kind}-bare")[0])
    assert plans(together / f"{kind}-clean", 0) == plans(together / f"{kind}-clean", 1) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", IN_PLACE)
def test_a_fault_on_one_rank_is_healed_by_all_at_the_same_step(together, kind, fault):
    folder = together / f"{kind}-{fault}"
    assert_all_are_at(folder, results(together / f"{kind}-bare")[0], exactly=fault != "record")
    assert plans(folder, 0) == plans(folder, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["jump", "weight"])
def test_weights_that_no_training_has_made_are_returned_from_by_all(together, kind, fault):
    told = results(together / f"{kind}-{fault}")
    assert [each["figures"]["healing/rollbacks"] for each in told] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_harmed_weights_is_marked_before_all_return(together, kind):
    for rank in (0, 1):
        thought = json.loads((together / f"{kind}-jump" / f"thought-{rank}.json").read_text())
        assert thought == {"checkpoint-5": "intact", "checkpoint-10": "intact", "checkpoint-15": "sick"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", AT_THE_END)
def test_what_happens_after_the_last_vote_but_before_the_end_is_voted_on_too(together, kind, fault):
    folder = together / f"{kind}-{fault}-last"
    assert_all_are_at(folder, results(together / f"{kind}-bare")[0])
    assert [each["figures"]["healing/rollbacks"] for each in results(folder)] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_record_of_one_rank_is_on_its_list_and_nobody_waits(together, kind):
    lists = list((together / f"{kind}-record" / "healing").glob("*quarantine*"))
    assert any("record 7 cannot be read" in path.read_text() for path in lists)


def test_a_rank_that_runs_out_of_memory_in_its_forward_pass_gets_through_alone(together):
    folder = together / "ddp-oom-forward"
    assert_all_are_at(folder, results(together / "ddp-bare")[0])
    assert any("got through" in json.dumps(entry) for entry in ledger(folder, 1))


def test_a_row_that_the_model_of_one_rank_raises_on_is_replaced_by_that_rank_alone(together):
    folder = together / "ddp-row"
    assert_all_are_at(folder, results(together / "ddp-bare")[0], exactly=False)
    assert any(entry["name"] == "row-left-out" for entry in ledger(folder, 1))


def test_a_step_that_runs_out_of_memory_everywhere_is_done_again_by_all(together):
    folder = together / "fsdp2-oom-everywhere"
    assert_all_are_at(folder, results(together / "fsdp2-bare")[0])
    for rank in (0, 1):
        assert any("done again by all" in json.dumps(entry) for entry in ledger(folder, rank))


def calls(folder):
    return json.loads((folder / "calls-0.json").read_text())


def test_a_guarded_loop_under_ddp_adds_no_collective_to_the_training(together):
    bare, guarded = calls(together / "ddp-bare"), calls(together / "ddp-clean")
    assert bare["allreduce_"] >= STEPS
    del bare["allgather_"], guarded["allgather_"]  # in which nothing but the side group talks, every few steps
    assert guarded == bare


def test_a_guarded_loop_under_fsdp2_adds_the_reduction_of_the_norm_alone(together):
    bare, guarded = calls(together / "fsdp2-bare"), calls(together / "fsdp2-clean")
    assert guarded.pop("allreduce_") == STEPS
    guarded.pop("allgather_")  # the side group
    assert guarded == bare


@pytest.mark.parametrize("fault", ["oom-rows", "kill", "stop"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_fails_alone_ends_all_and_they_go_on_from_shared_memory(together, tmp_path, kind, fault):
    folder = tmp_path / "run"
    told = launch(tmp_path, job(folder, kind, fault), restarts=1)
    assert told.is_done, (told.codes, [path.read_text()[-1500:] for path in sorted(tmp_path.glob("output-*.txt"))])
    assert told.restarts == 1
    in_pieces = fault == "oom-rows"
    assert_all_are_at(
        folder, results(together / f"{kind}-bare")[0], exactly=not in_pieces, nearly=1e-6 if in_pieces else None
    )
    resumed = [entry for entry in ledger(folder) if entry["name"] == "resuming"]
    # Killed in step 14, states every 4.
    assert any("shared-memory-step-12" in entry["body"]["text"] for entry in resumed)
    for rank in (0, 1):
        began = [entry["body"]["text"] for entry in ledger(folder, rank) if entry["name"] == "memory-lessons"]
        assert any("pieces of at most 2 rows, on all of them" in text for text in began) == in_pieces

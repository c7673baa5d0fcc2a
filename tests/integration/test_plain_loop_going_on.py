"""A loop of one's own is started again after its process was killed: it ends as if nothing had happened."""

from __future__ import annotations

import pytest

from .killed_loop import PER_EPOCH
from .killed_training import EVERY, gone_on, killed, notes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
ON_DISK = {"config": {"shared_memory": False}, "save_every": 2}
KINDS = {
    "shuffled": {},
    "two workers": {"workers": 2},
    "a stream": {"kind": "stream"},
    "a schedule by epochs": {"kind": "per epoch"},
    "accumulation": {"accumulate": 2},
    "a scaler": {"kind": "scaler"},
    "an evaluation that draws": {"evaluates": True},
    "by its loss": {"form": 2},
    "by its loss, accumulation": {"form": 2, "accumulate": 2},
    "updates across epochs": {"accumulate": 2, "rows": 20, "epochs": 5},
    "by its own step": {"form": 3},
    "by its own step, two workers": {"form": 3, "workers": 2},
    "by its own step, accumulation": {"form": 3, "accumulate": 2},
    "by its own step, a scaler": {"form": 3, "kind": "scaler"},
    "by its own step, a schedule by epochs": {"form": 3, "kind": "per epoch"},
}


@pytest.fixture(autouse=True)
def nothing_is_left(own_shared_memory):
    yield
    assert list(own_shared_memory.iterdir()) == []


def assert_same(result, bare):
    assert result["state"] == bare["state"]
    assert not result["transformers"], "torch is all that a loop of one's own needs"


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_loop_ends_as_if_nothing_had_happened(kind, where, loops, bare_loops, tmp_path):
    """Killed in the second epoch, in the middle of two states."""
    how = ON_DISK if where == "disk" else {}
    killed(loops, tmp_path, "body", 8, **KINDS[kind], **how)
    result = gone_on(loops, tmp_path, **KINDS[kind], **how)
    assert_same(result, bare_loops(**KINDS[kind]))
    assert result["first"] == (8 if where == "disk" else 6)
    (told,) = notes(tmp_path, "resuming")
    assert ("shared memory" in told) == (where == "memory")


@pytest.mark.parametrize(
    ("form", "where"),
    [
        (1, "memory"),
        (3, "disk"),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1, "disk"), (3, "memory"))),
    ],
)
@pytest.mark.parametrize(
    "kill",
    [("body", 1), ("behind", PER_EPOCH), ("between", 0), ("body", PER_EPOCH), ("between", 1), ("behind", 14)],
    ids=str,
)
def test_it_does_not_matter_where_it_was_killed(kill, form, where, loops, bare_loops, tmp_path):  # noqa: PLR0917
    job = {"form": form, "kind": "per epoch", "evaluates": True}
    how = {**ON_DISK, "save_every": 1} if where == "disk" else {}
    killed(loops, tmp_path, *kill, **job, **how)
    result = gone_on(loops, tmp_path, **job, **how)
    assert_same(result, bare_loops(**job))


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_it_may_be_killed_several_times(where, loops, bare_loops, tmp_path):
    job = {"workers": 2, **(ON_DISK if where == "disk" else {})}
    for at in (2, 4, 7, 8, 12):
        killed(loops, tmp_path, "body", at, **job)
    result = gone_on(loops, tmp_path, **job)
    assert_same(result, bare_loops(workers=2))
    assert 12 - result["first"] <= EVERY


@pytest.mark.parametrize("kind", ["average", "lookahead"])
def test_what_also_belongs_to_a_state_is_gone_on_with_from_disk(kind, loops, bare_loops, tmp_path):
    job = {"kind": kind, "save_every": 4}
    killed(loops, tmp_path, "body", 7, **job)
    result = gone_on(loops, tmp_path, **job)
    assert_same(result, bare_loops(kind=kind))
    assert result["first"] == 4, "although shared memory holds a later state"

"""How many states host memory has room for: a share of what is free, for all processes of a machine together."""

from __future__ import annotations

import pytest

from self_healing.snapshots.budget import slots_within


@pytest.mark.parametrize(
    ("free", "fraction", "local_ranks", "slots"),
    [
        (100, 0.5, 1, 5),
        (100, 0.5, 2, 2),  # each of two has half of it
        (100, 0.5, 8, 0),
        (100, 1.0, 1, 6),  # no more than are of use
        (99, 0.5, 1, 4),
        (0, 0.5, 1, 0),
    ],
)
def test_the_share_is_divided_by_the_processes_of_the_machine(free, fraction, local_ranks, slots):
    assert slots_within(10, free=free, fraction=fraction, local_ranks=local_ranks, most=6) == slots


def test_the_schedule_divides_by_what_the_launcher_says_and_leaves_room_for_the_state_of_a_moment(monkeypatch):
    from types import SimpleNamespace

    from self_healing.adapters.rollback.state_schedule import NoRoomError, StateSchedule
    from self_healing.snapshots.budget import free_memory
    from self_healing.snapshots.verdicts import first_state

    def slots(share, ranks):
        """Return how many states are kept besides the first, if one takes that share of what is free."""
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        made = StateSchedule(SimpleNamespace(snapshot_every_steps=1, max_lost_steps=9, snapshot_memory_fraction=0.5))
        made.find_room(int(share * free_memory()), [first_state("0")], lambda slots, _nbytes, _fewest: slots)
        return made.slots

    assert slots(0.11, 1) == 3  # there is room for four, one of which is kept free
    assert slots(0.001, 1) == 6
    assert slots(0.22, 1) == 2  # the fewest that are of use
    assert slots(0.055, 2) == 3
    with pytest.raises(NoRoomError):
        slots(0.11, 4)


RANKS = [
    ({}, 1),
    ({"LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "1"}, 8),  # torchrun, once per node
    ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
    ({"MPI_LOCALNRANKS": "2"}, 2),
    ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "4(x2)"}, 4),
    ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "4(x2)"}, 2),  # the job has more than this step of it
    ({"SLURM_TASKS_PER_NODE": "4(x2)"}, 4),
    ({"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1"}, 4),
    ({"SLURM_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
    ({"SLURM_TASKS_PER_NODE": "2,8"}, 8),  # nobody says which node this is
    ({"LOCAL_WORLD_SIZE": "", "SLURM_TASKS_PER_NODE": "many"}, 1),
    ({"LOCAL_WORLD_SIZE": "0"}, 1),
]


@pytest.mark.parametrize(("environ", "ranks"), RANKS)
def test_every_launcher_may_say_how_many_processes_share_the_machine(environ, ranks):
    from self_healing.snapshots.budget import local_ranks

    assert local_ranks(environ) == ranks


MIB = 2**20
GROUPS = {
    "version 2": ("0::/job/step\n", "", "memory.max", "memory.current"),
    "version 1": ("4:cpu,memory:/job/step\n0::/\n", "memory/", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("tightest", ["job/step", "job", "."])
def test_the_least_that_a_control_group_on_the_way_up_has_left_is_what_is_free(kind, tightest, tmp_path):
    from self_healing.snapshots.budget import free_memory, whole_memory

    own, top, limit, used = GROUPS[kind]
    (tmp_path / "own").write_text(own)
    for group in ("job/step", "job", ".", "job/other"):
        folder = tmp_path / top / group
        folder.mkdir(parents=True, exist_ok=True)
        is_tight = group in (tightest, "job/other")
        (folder / limit).write_text(f"{(2 if group == 'job/other' else 4) * MIB if is_tight else 'max'}\n")
        (folder / used).write_text(f"{MIB}\n")
    assert free_memory(tmp_path, tmp_path / "own") == 3 * MIB, "not that of another group beside it"
    assert whole_memory(tmp_path, tmp_path / "own") == 4 * MIB

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

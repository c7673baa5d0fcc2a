"""When the next state is taken: after a return, right before what the run has returned from."""

from __future__ import annotations

from types import SimpleNamespace

from self_healing.adapters.rollback.state_schedule import StateSchedule


def schedule():
    made = StateSchedule(SimpleNamespace(snapshot_every_steps=100, max_lost_steps=500, snapshot_memory_fraction=0.5))
    made.begin(0)
    return made


def due(made, first, last):
    """Go through steps as a run does, and return those at which a state is taken."""
    found = []
    for step in range(first, last):
        if made.is_time(step):
            found.append(step)
            made.took(step, busy_s=0.0, first_step=0, returns=1)
    return found


def test_after_a_return_a_state_is_taken_right_before_the_trouble_once():
    made = schedule()
    assert due(made, 0, 250) == [0, 100, 200]
    made.returned(200, onset=241)
    assert due(made, 200, 400) == [201, 240, 340]
    made.returned(340, onset=None)
    assert due(made, 340, 460) == [341, 441]


def test_trouble_that_begins_right_there_needs_no_state_of_its_own():
    made = schedule()
    made.returned(200, onset=201)
    assert due(made, 200, 300) == [201]
    made.begin(0)
    assert due(made, 0, 50) == [0]

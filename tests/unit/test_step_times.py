"""Time that returns have undone: all since the run was at the step that it went back to."""

from __future__ import annotations

import pytest

from self_healing.report.step_times import MOST_REMEMBERED, StepTimes


def trained(*steps, began_s=0.0, each_s=2.0):
    times = StepTimes(began_s)
    for step in steps:
        times.seen(step, 100.0 + each_s * step)
    return times


@pytest.mark.parametrize(
    ("steps", "to_step", "lost_s"),
    [
        (range(1, 21), 12, 16.0),
        (range(1, 21), 0, 40.0),
        (range(0, 21, 10), 12, 16.0),
        ((20,), 12, 0.0),
        ((), 12, 0.0),
    ],
    ids=["every-step", "before-the-first", "thinned", "nothing-before", "nothing"],
)
def test_the_time_since_the_step_that_was_returned_to_is_lost(steps, to_step, lost_s):
    assert trained(*steps).returned(to_step, 140.0) == pytest.approx(lost_s)


def test_a_second_return_loses_only_what_was_trained_since_the_first():
    times = trained(*range(1, 21))
    assert times.returned(12, 140.0) == pytest.approx(16.0)
    for step in range(13, 17):
        times.seen(step, 140.0 + 3.0 * (step - 12))
    assert times.returned(12, 152.0) == pytest.approx(12.0)
    assert times.returned(10, 152.0) == pytest.approx(4.0), "what was before the first one was not lost with it"


def test_no_more_is_lost_than_the_process_has_run():
    assert trained(18, 20, began_s=130.0).returned(0, 140.0) == 10.0


def test_memory_does_not_grow_with_the_run():
    times = trained(*range(10 * MOST_REMEMBERED))
    assert len(times._seen) == MOST_REMEMBERED
    assert times.returned(0, 100.0 + 20 * MOST_REMEMBERED) == pytest.approx(20 * MOST_REMEMBERED)

"""Who of several ranks is named as absent, and who is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.core.attendance import BEATS_PER_INTERVAL, CERTAIN_AFTER, SILENT_AFTER, Attendance

INTERVAL_S = 10.0
TICK_S = INTERVAL_S / BEATS_PER_INTERVAL


def listening(*ranks):
    attendance = Attendance(INTERVAL_S, 0.0)
    attendance.expect(ranks)
    return attendance


def beats(attendance, *, until_s, since_s=0.0, lost=lambda rank, now_s: False, ranks=(1, 2)):
    """Let the ranks beat, and look each time; return who was named, and when."""
    named = []
    for number in range(round(since_s / TICK_S), round(until_s / TICK_S) + 1):
        now_s = number * TICK_S
        for rank in ranks:
            if not lost(rank, now_s):
                attendance.hear(rank, count=number, step=number, now_s=now_s)
        attendance.look(now_s)
        named += [(each.rank, now_s) for each in attendance.absent(now_s)]
    return named


def test_ranks_that_beat_are_not_named():
    assert beats(listening(1, 2), until_s=600.0) == []


@given(st.sets(st.integers(0, 200), max_size=80))
def test_beats_that_get_lost_now_and_then_name_nobody(lost):
    most = int(SILENT_AFTER * BEATS_PER_INTERVAL) - 1
    kept = {number for number in lost if not all(number - back in lost for back in range(1, most))}
    assert beats(listening(1, 2), until_s=500.0, lost=lambda rank, now_s: rank == 1 and now_s / TICK_S in kept) == []


def test_a_rank_that_stops_beating_is_named_within_two_intervals_and_nobody_else():
    named = beats(listening(1, 2), until_s=100.0, lost=lambda rank, now_s: rank == 2 and now_s > 40.0)
    assert {rank for rank, _ in named} == {2}
    assert 40.0 + INTERVAL_S < named[0][1] <= 40.0 + 2 * INTERVAL_S


def test_one_that_never_came_is_named_too():
    named = beats(listening(1, 2), until_s=60.0, lost=lambda rank, now_s: rank == 1)
    assert named[0] == (1, (int(SILENT_AFTER * BEATS_PER_INTERVAL) + 1) * TICK_S)


def test_a_process_that_is_gone_is_named_at_once_and_one_that_is_stopped_after_its_silence():
    attendance = listening(1, 2)
    beats(attendance, until_s=10.0)
    attendance.seen(1, "gone")
    attendance.seen(2, "stopped")
    assert [(each.rank, each.why) for each in attendance.absent(12.5)] == [(1, "gone")]
    assert [(each.rank, each.why) for each in attendance.absent(26.0)] == [(1, "gone"), (2, "stopped")]


def test_whoever_has_ended_is_missed_by_nobody():
    attendance = listening(1, 2)
    attendance.ended(1)
    attendance.seen(1, "gone")
    attendance.ended(2, error="OutOfMemoryError: no room")
    (failed,) = attendance.absent(600.0)
    assert (failed.rank, failed.why) == (2, "failed")
    assert "OutOfMemoryError: no room" in failed.sentence
    assert attendance.has_ended(1)
    assert not attendance.has_ended(2)


def test_after_this_process_was_stopped_itself_nobody_is_named_for_what_it_has_missed():
    attendance = listening(1, 2)
    beats(attendance, until_s=20.0)
    attendance.look(500.0)
    assert attendance.absent(500.0) == ()
    assert beats(attendance, since_s=502.5, until_s=600.0) == []


def test_a_beat_that_came_late_is_no_sign_of_life():
    attendance = listening(1)
    attendance.hear(1, count=9, step=9, now_s=1.0)
    attendance.hear(1, count=8, step=8, now_s=30.0)
    (absent,) = attendance.absent(30.0)
    assert absent.step == 9


def test_a_rank_that_comes_back_is_absent_no_longer():
    attendance = listening(1)
    attendance.seen(1, "stopped")
    assert attendance.absent(60.0)
    attendance.hear(1, count=1, step=1, now_s=60.0, stack="train (a.py:1)")
    assert attendance.absent(61.0) == ()


@pytest.mark.parametrize(
    ("why", "after_s", "is_certain"),
    [
        ("", SILENT_AFTER * INTERVAL_S + 1, False),
        ("", CERTAIN_AFTER * INTERVAL_S + 1, True),
        ("stopped", SILENT_AFTER * INTERVAL_S + 1, True),
        ("gone", 1.0, True),
        ("traced", 1000.0, False),
    ],
)
def test_silence_alone_is_acted_on_later_than_what_is_known_and_a_debugger_never(why, after_s, is_certain):
    attendance = listening(1)
    attendance.seen(1, why)
    (absent,) = attendance.absent(after_s)
    assert attendance.is_certain(absent) is is_certain


def test_an_absence_is_told_in_one_sentence_with_the_innermost_frame():
    attendance = listening(3)
    attendance.hear(3, count=1, step=17, now_s=0.0, stack="all_reduce (d.py:3)\nmain (train.py:9)")
    (absent,) = attendance.absent(20.0)
    assert absent.sentence == "rank 3: it does not answer, last heard 20 s ago at step 17, in all_reduce (d.py:3)"

"""Which states are kept with few slots, and how often one is taken."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.snapshots.spacing import FEWEST_SLOTS, Pace, Slot, failures_per_second, slot_for, steps_between
from self_healing.snapshots.verdicts import Condition

CONDITIONS = st.sampled_from(Condition)


def slots_of(conditions):
    """Return slots of rising steps with these conditions."""
    return [None if condition is None else Slot(10 * (1 + i), condition) for i, condition in enumerate(conditions)]


@given(st.lists(st.one_of(st.none(), CONDITIONS), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_the_last_good_state_and_its_successor_are_never_given_up(conditions, shuffler):
    slots = slots_of(conditions)
    shuffler.shuffle(slots)
    place = slot_for(slots, 1000)
    held = [slot for slot in slots if slot is not None]
    good = max((s.step for s in held if s.condition is Condition.GOOD), default=None)
    heir = min((s.step for s in held if s.condition is Condition.INTACT and s.step > (good or 0)), default=None)
    if place is None:
        assert {slot.step for slot in held} <= {good, heir}
        assert len(held) == len(slots)
        return
    if None in slots:
        assert slots[place] is None
    elif any(slot.condition is Condition.SICK for slot in held):
        assert slots[place].condition is Condition.SICK
    else:
        assert slots[place].step not in (good, heir)


def healthy_run(slot_count, interval, good_after, steps):
    """Yield (step, what the slots hold) of a healthy run that saves at each interval."""
    slots = [None] * slot_count
    for step in range(interval, steps, interval):
        slots = [Slot(s.step, Condition.GOOD) if s is not None and step - s.step >= good_after else s for s in slots]
        place = slot_for(slots, step)
        if place is not None:
            slots[place] = Slot(step, Condition.INTACT)
        yield step, [slot for slot in slots if slot is not None]


@given(st.integers(FEWEST_SLOTS, 8), st.integers(1, 200), st.sampled_from([1, 32, 128]))
def test_in_a_healthy_run_the_last_good_state_never_grows_old(slot_count, interval, good_after):
    # An heir is chosen at the latest one interval after the last one became good, and seen to be good at a save.
    bound = 2 * (good_after + 2 * interval)
    for step, held in healthy_run(slot_count, interval, good_after, 40 * interval + 5 * good_after):
        good = max((s.step for s in held if s.condition is Condition.GOOD), default=0)
        assert step - good <= bound, held


@given(st.integers(3, 8), st.integers(1, 50))
def test_with_a_third_slot_the_newest_state_is_always_kept(slot_count, interval):
    for step, held in healthy_run(slot_count, interval, 32, 100 * interval):
        assert max(slot.step for slot in held) == step


@pytest.mark.parametrize(("slot_count", "ratio"), [(5, 24), (6, 16), (8, 7)])
def test_ages_are_spaced_exponentially_from_one_interval_to_the_whole_run(slot_count, ratio):
    for step, held in healthy_run(slot_count, 5, 32, 20_000):
        if step < 2000:
            continue
        # In units of the interval, the first state included: no gap between neighbours is larger than this factor.
        ages = sorted([1 + (step - slot.step) / 5 for slot in held] + [1 + step / 5])
        assert max(older / younger for younger, older in pairwise(ages)) <= ratio, ages


def test_a_sick_state_makes_room_before_any_other():
    held = [Slot(10, Condition.GOOD), Slot(20, Condition.SICK), Slot(90, Condition.UNKNOWN), Slot(95, Condition.INTACT)]
    assert slot_for(held, 100) == 1


def test_the_newest_state_of_the_deep_tier_stays_where_there_is_room_for_more():
    kept = [Slot(step, Condition.GOOD, is_deep=step <= 620) for step in (100, 620, 640, 980)]
    assert kept[slot_for([Slot(each.step, each.condition) for each in kept], 1000)].step == 620  # the closest in age
    assert kept[slot_for(kept, 1000)].step == 100
    few = [Slot(620, Condition.GOOD, is_deep=True), Slot(640, Condition.GOOD), Slot(990, Condition.INTACT)]
    assert few[slot_for(few, 1000)].step == 620


def test_one_slot_is_not_taken_from_a_good_state():
    assert slot_for([Slot(10, Condition.GOOD)], 20) is None
    assert slot_for([Slot(10, Condition.UNKNOWN)], 20) == 0
    assert slot_for([], 20) is None


def test_a_resumed_run_counts_ages_from_where_it_began():
    slots = [Slot(1010, Condition.GOOD), Slot(1020, Condition.GOOD), Slot(1030, Condition.GOOD)]
    # Next to the state of step 1000, kept elsewhere, the one of 1010 is worth less than it would be far from step 0.
    assert slot_for(slots, 1100, first_step=1000) == 0
    assert slot_for(slots, 1100) == 1


positive = st.floats(1e-6, 1e6)


@given(positive, positive, st.floats(1e-9, 1.0), st.integers(1, 10_000))
def test_the_interval_is_bounded_whatever_was_measured(stall_s, step_s, rate, most):
    steps = steps_between(stall_s=stall_s, step_s=step_s, failure_rate=rate, max_lost_steps=most)
    assert 1 <= steps <= max(most, 1 + stall_s / (0.009 * step_s))


def test_few_steps_to_lose_do_not_buy_more_than_a_hundredth_of_the_time():
    known = {"step_s": 0.2, "failure_rate": 1e-5, "max_lost_steps": 50}
    assert steps_between(stall_s=0.05, **known) == 50
    assert steps_between(stall_s=0.3, **known) == 167
    assert steps_between(stall_s=0.3, **known, forced=50) == 50


@pytest.mark.parametrize("stall_s", [0.15, 0.3, 1.0])
def test_a_hundredth_is_kept_where_both_times_are_a_twentieth_off(stall_s):
    steps = steps_between(stall_s=stall_s, step_s=0.2, failure_rate=1e-5, max_lost_steps=50)
    assert 0.008 < 1.05 * stall_s / (steps * 0.95 * 0.2) <= 0.01


@given(st.floats(0.001, 10), st.floats(0.01, 10), st.floats(1e-6, 1e-3))
def test_the_interval_costs_the_least_time(stall_s, step_s, rate):
    steps = steps_between(stall_s=stall_s, step_s=step_s, failure_rate=rate, max_lost_steps=10**9)

    def share_lost(count):
        """Return Daly's model: time of a run with failures over the time it would take without, minus one."""
        work_s = count * step_s
        return math.expm1(rate * (work_s + stall_s)) / (rate * work_s) - 1

    best = min(share_lost(max(1, round(steps * factor))) for factor in (0.25, 0.5, 0.8, 1.25, 2, 4))
    assert share_lost(steps) <= best * 1.1 + 1e-9  # whole steps only


@pytest.mark.parametrize("odd", [{"step_s": 0.0}, {"stall_s": math.nan}, {"failure_rate": 0.0}, {"step_s": math.inf}])
def test_before_anything_is_measured_the_bound_is_the_interval(odd):
    known = {"stall_s": 0.1, "step_s": 1.0, "failure_rate": 1e-5, "max_lost_steps": 50, **odd}
    assert steps_between(**known) == 50


def test_the_users_interval_wins():
    assert steps_between(stall_s=1, step_s=1, failure_rate=1e-5, max_lost_steps=5, forced=70) == 70
    assert steps_between(stall_s=1, step_s=1, failure_rate=1e-5, max_lost_steps=5, forced=0) == 1


def test_the_rate_of_failures_begins_with_one_a_day_and_follows_what_is_seen():
    day = 24 * 3600
    assert failures_per_second(0, 0) == pytest.approx(1 / day)
    assert failures_per_second(0, 9 * day) == pytest.approx(0.1 / day)
    assert failures_per_second(19, day) == pytest.approx(10 / day)


def test_what_a_state_costs_is_seen_in_the_steps_that_take_one():
    pace = Pace()
    assert (pace.step_s, pace.stall_s) == (0.0, 0.0)
    for number in range(40):
        took = number % 10 == 3
        pace.stepped(0.1 + 0.25 * took + (5.0 if number == 17 else 0.0), took_state=took)  # one odd step is no measure
    assert pace.step_s == pytest.approx(0.1)
    assert pace.stall_s == pytest.approx(0.25)


def test_on_a_machine_that_others_use_too_a_state_costs_what_the_host_was_busy_for():
    for seed in range(200):
        draw = random.Random(seed)
        pace = Pace()
        for number in range(2000):
            took = number % 50 == 0
            speed = 0.05 if number // 400 % 2 else 0.1  # somebody else comes and goes
            pace.stepped(speed * draw.lognormvariate(0, 0.5) + 0.004 * took, took_state=took)
            if took:
                pace.was_busy(0.004)
        assert 0.004 <= pace.stall_s <= 0.025, seed
        known = {"step_s": pace.step_s, "failure_rate": 1 / 86_400, "max_lost_steps": 50}
        assert steps_between(stall_s=pace.stall_s, **known) == 50, seed


def test_what_a_device_takes_longer_than_the_host_is_seen_through_some_scatter():
    draw = random.Random(1)
    pace = Pace()
    for number in range(2000):
        took = number % 50 == 0
        pace.stepped(0.14 * draw.lognormvariate(0, 0.03) + 0.084 * took, took_state=took)
        if took:
            pace.was_busy(0.002)
    assert pace.stall_s == pytest.approx(0.084, rel=0.1)

"""Intact, good, sick: what becomes of a saved state, for any course of observations and incidents."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.snapshots.verdicts import (
    GOOD_AFTER,
    Condition,
    OpenIncident,
    SavedState,
    StateVerdict,
    Tier,
    after_incident,
    after_observation,
    after_return,
    after_trouble,
    at_depth,
    first_state,
    newest_for_a_crash,
    newest_for_an_incident,
    verdict_when_taken,
)

INTACT = StateVerdict(Condition.INTACT, "")


def taken(step, tier=Tier.MEMORY, verdict=INTACT):
    return SavedState(key=str(step), step=step, tier=tier, verdict=verdict)


def conditions(states):
    return [state.verdict.condition for state in states]


@pytest.mark.parametrize(("tier", "count"), [(Tier.MEMORY, 32), (Tier.DEEP, 128), (Tier.DISK, 1024)])
def test_an_intact_state_is_good_after_so_many_healthy_observations_and_not_one_earlier(tier, count):
    states = (taken(10, tier),)
    for step in range(11, 10 + count):
        states = after_observation(states, step, healthy=True)
    assert conditions(states) == [Condition.INTACT]
    (state,) = after_observation(states, 10 + count, healthy=True)
    assert state.verdict == StateVerdict(Condition.GOOD, f"{count} healthy observations in a row after it")


def test_an_observation_that_is_not_healthy_starts_the_count_again():
    states = (taken(10),)
    for step in range(11, 42):
        states = after_observation(states, step, healthy=True)
    states = after_observation(states, 42, healthy=False)
    for step in range(43, 43 + 31):
        states = after_observation(states, step, healthy=True)
    assert conditions(states) == [Condition.INTACT]
    assert conditions(after_observation(states, 80, healthy=True)) == [Condition.GOOD]


def test_observations_of_steps_that_a_state_holds_already_do_not_count_for_it():
    states = (taken(10),)
    for _ in range(100):
        states = after_observation(states, 10, healthy=True)
    assert states == (taken(10),)


def test_a_state_that_was_never_measured_does_not_become_good():
    states = (taken(10, verdict=StateVerdict()),)
    for step in range(11, 60):
        states = after_observation(states, step, healthy=True)
    assert conditions(states) == [Condition.UNKNOWN]


def test_what_holds_the_first_harmed_step_is_sick_and_what_ends_before_it_is_not():
    states = after_incident((first_state("0"), taken(19), taken(20), taken(21)), OpenIncident("loss-divergence", 20))
    assert conditions(states) == [Condition.GOOD, Condition.INTACT, Condition.SICK, Condition.SICK]
    assert states[2].verdict.because == "loss-divergence began at step 20"


def test_trouble_that_was_harmless_leaves_sick_only_what_is_broken_itself():
    incident = OpenIncident("loss-spike", 20)
    broken = verdict_when_taken(22, norms={"w": math.nan}, open_incident=incident)
    within = verdict_when_taken(23, norms={"w": 1.0}, open_incident=incident)
    unseen = verdict_when_taken(24, norms=None, open_incident=incident)
    states = (taken(19), taken(21), taken(22, verdict=broken), taken(23, verdict=within), taken(24, verdict=unseen))
    states = after_incident(states, incident)
    assert conditions(states) == [Condition.INTACT, *[Condition.SICK] * 4]
    over = after_trouble(states, was_harmless=True)
    assert conditions(over) == [Condition.INTACT, Condition.INTACT, Condition.SICK, Condition.INTACT, Condition.UNKNOWN]
    assert over[1].verdict.because == "loss-spike began at step 20, and was over by itself"
    for_good = after_trouble(states, was_harmless=False)
    assert conditions(for_good) == conditions(states)
    assert after_trouble(for_good, was_harmless=True) == states, "what comes later does not lift it"


def test_what_is_trusted_again_has_to_prove_itself_from_then_on():
    states = (taken(10),)
    for step in range(11, 30):
        states = after_observation(states, step, healthy=True)
    states = after_trouble(after_incident(states, OpenIncident("loss-spike", 9)), was_harmless=True)
    assert states[0].healthy == 0
    for step in range(30, 30 + GOOD_AFTER[Tier.MEMORY]):
        states = after_observation(states, step, healthy=True)
    assert conditions(states) == [Condition.GOOD]


def test_the_first_reason_for_being_sick_is_kept():
    states = after_incident((taken(20),), OpenIncident("first", 20))
    assert after_incident(states, OpenIncident("second", 10)) == states


@pytest.mark.parametrize(
    ("how", "expected", "because"),
    [
        ({"norms": {"a": 1.0}}, Condition.INTACT, "norms in range"),
        ({"norms": {"a": math.nan, "b": 1.0}}, Condition.SICK, "not finite: a"),
        ({"norms": {"a": math.inf}}, Condition.SICK, "not finite: a"),
        ({"norms": None}, Condition.UNKNOWN, "not measured"),
        ({"norms": {}}, Condition.UNKNOWN, "not measured"),
        ({"norms": {"a": 1.0}, "open_incident": OpenIncident("spike", 30)}, Condition.SICK, "spike began at step 30"),
        ({"norms": {"a": 1.0}, "open_incident": OpenIncident("spike", 31)}, Condition.INTACT, "before any trouble"),
    ],
)
def test_the_verdict_when_a_state_is_taken(how, expected, because):
    verdict = verdict_when_taken(30, **how)
    assert verdict.condition is expected
    assert because in verdict.because


def test_the_state_before_step_1_is_good_at_once():
    assert verdict_when_taken(0, norms=None).condition is Condition.GOOD
    assert first_state("x").verdict.condition is Condition.GOOD


def test_a_crash_goes_back_to_the_newest_intact_and_an_incident_to_the_newest_good_or_before_its_onset():
    good = taken(10, verdict=StateVerdict(Condition.GOOD, ""))
    sick = taken(50, verdict=StateVerdict(Condition.SICK, ""))
    states = (first_state("0"), good, taken(20), taken(30), taken(40, verdict=StateVerdict()), sick)
    assert newest_for_a_crash(states).step == 30
    assert newest_for_an_incident(states, None).step == 10
    assert newest_for_an_incident(states, 30).step == 20
    assert newest_for_an_incident(states, 5).step == 0
    assert newest_for_an_incident(states, 0).step == 0
    assert newest_for_a_crash(()) is None


def observed(states, steps, *, healthy=True):
    for step in steps:
        states = after_observation(states, step, healthy=healthy)
    return states


def test_a_good_state_goes_on_to_be_proved_until_it_is_one_of_the_deep_tier():
    (state,) = observed((taken(10),), range(11, 138))
    assert (state.verdict.condition, state.tier) == (Condition.GOOD, Tier.MEMORY)
    (broken,) = observed((state,), [138], healthy=False)
    assert (broken.verdict.condition, broken.tier) == (Condition.GOOD, Tier.MEMORY)
    (broken,) = observed((broken,), range(139, 266))
    assert broken.tier is Tier.MEMORY
    (deep,) = observed((state,), [138])
    assert (deep.verdict.condition, deep.tier) == (Condition.GOOD, Tier.DEEP)
    assert after_incident((deep,), OpenIncident("x", 5))[0].verdict.is_sick


def test_the_deepest_return_goes_to_a_state_that_is_proved_and_to_the_first_where_none_is():
    states = observed((first_state("0"), taken(100), taken(600), taken(800)), range(801, 941))
    states += (taken(950), taken(990), taken(999))
    newest = newest_for_an_incident(states, 1001)
    chosen = [at_depth(states, newest, depth=depth, step=1000).step for depth in range(3)]
    assert chosen == [999, 990, 800]
    young = (first_state("0"), taken(30), taken(50), taken(58))
    assert [at_depth(young, young[-1], depth=depth, step=60).step for depth in range(3)] == [58, 50, 0]


def test_after_a_return_the_states_that_were_left_behind_are_forgotten():
    assert after_return((taken(10), taken(20), taken(30)), 20) == (taken(10), taken(20))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from(Tier)),
        st.tuples(st.just("observe"), st.integers(1, 60)),
        st.tuples(st.just("unhealthy"), st.just(1)),
        st.tuples(st.just("incident"), st.integers(0, 80)),
        st.tuples(st.just("return"), st.integers(0, 80)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_whatever_happens_good_is_earned_sick_is_final_and_the_first_state_stays(events):
    states, step = (first_state("0"),), 0
    quiet = {}  # healthy observations in a row since each state was taken, counted independently
    ever_sick = set()
    for event, value in events:
        before = {state.key: state.verdict.condition for state in states}
        if event == "take" and step > 0 and str(step) not in before:
            states += (taken(step, value),)
            quiet[str(step)] = 0
        elif event == "observe":
            for _ in range(value):
                step += 1
                states = after_observation(states, step, healthy=True)
                quiet = {key: count + 1 if int(key) < step else count for key, count in quiet.items()}
        elif event == "unhealthy":
            step += 1
            states = after_observation(states, step, healthy=False)
            quiet = {key: 0 if before.get(key) is Condition.INTACT else count for key, count in quiet.items()}
        elif event == "incident":
            onset = max(0, step - value)
            states = after_incident(states, OpenIncident("x", onset))
            assert all(state.verdict.is_sick == (str(state.step) in ever_sick or state.step >= onset)
                       for state in states if state.step > 0)  # fmt: skip
            ever_sick |= {state.key for state in states if state.verdict.is_sick}
        elif event == "return":
            step = max(0, step - value)
            states = after_return(states, step)
            ever_sick = {key for key in ever_sick if int(key) <= step}
            quiet = {key: count for key, count in quiet.items() if int(key) <= step}
        assert states[0].verdict.condition is Condition.GOOD
        for state in states[1:]:
            earned = quiet[state.key] >= GOOD_AFTER[state.tier]
            assert (state.verdict.condition is Condition.GOOD) == (earned and state.key not in ever_sick)
            assert state.verdict.is_sick == (state.key in ever_sick)
        found = newest_for_an_incident(states, None)
        assert found.verdict.condition is Condition.GOOD
        assert newest_for_a_crash(states).step >= found.step

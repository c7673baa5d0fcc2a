"""Which state a run returns to, by what is known of where its trouble began, and which trouble makes states sick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.actions.roll_back import RollBack
from self_healing.adapters.rollback.harm import harmed_since
from self_healing.adapters.rollback.known_states import KnownStates
from self_healing.core.failure import FailureType, Severity
from self_healing.core.incident import Incident
from self_healing.core.lifecycle import Case
from self_healing.core.plan import Plan
from self_healing.snapshots.verdicts import Condition, StateVerdict, verdict_when_taken


def known(**conditions):
    made = KnownStates()
    for name, condition in conditions.items():
        made.add(name, int(name.removeprefix("s")))
        made.judged(name, StateVerdict(condition, ""))
    return made


def incident(name, *, step, onset=None):
    return Incident(
        name=name,
        failure=FailureType.RL_COLLAPSE,
        fine="x",
        severity=Severity.ERROR,
        step=step,
        because="",
        onset_step=onset,
    )


def case(name="reward-collapse", *, step=25, onset=None, returned_to=None):
    """Return an open incident; where a step is given, a plan has returned the run to it."""
    made = Case(incident=incident(name, step=step, onset=onset))
    if returned_to is not None:
        answer(made, returned_to)
    return made


def answer(made, returned_to):
    seen = made.incident
    plan = Plan(
        step=seen.step, rank=0, incident=seen.name, failure=seen.failure, severity=seen.severity,
        actions=(RollBack(),), because="", rung="roll-back", watch=32, onset_step=seen.onset_step,
    )  # fmt: skip
    made.start_acting(plan)
    made.start_watching(rewound=returned_to is not None, eval_before=None, at_s=0.0, returned_to=returned_to)


def take(states, step):
    """Take the state of a step, as the keeper does; return its key."""
    states.add(f"s{step}", step)
    states.judged(f"s{step}", verdict_when_taken(step, norms={"w": 1.0}, open_incident=states.open))
    return f"s{step}"


def chosen(states, *, before_step=None, step=25):
    return states.choose(lambda _key: True, step, before_step=before_step, depth=0, min_steps=None).key


@pytest.mark.parametrize(
    ("seen", "key"),
    [
        ([], "s20"),  # a crash: the newest that is intact
        ([case()], "s10"),  # nobody knows when it began: one that has proved itself
        ([case(onset=21)], "s20"),  # the newest that is intact before it
        ([case(onset=15)], "s10"),
        ([case(onset=5)], "s0"),
        ([case("weights-not-finite")], "s20"),  # an intact state is finite: it was taken before
    ],
)
def test_where_trouble_began_decides_which_states_are_trusted(seen, key):
    states = known(s0=Condition.GOOD, s10=Condition.GOOD, s20=Condition.INTACT)
    states.observed(25, seen, good_after=32)
    assert chosen(states) == key


def test_a_plan_that_names_a_step_is_taken_at_its_word():
    states = known(s0=Condition.GOOD, s10=Condition.GOOD, s20=Condition.INTACT)
    states.observed(25, [case()], good_after=32)
    assert chosen(states, before_step=22) == "s20"


@pytest.mark.parametrize(
    ("open_now", "since"),
    [
        (case(onset=21), 21),
        (case(onset=21, returned_to=20), None),
        (case(onset=21, returned_to=21), 21),  # the harm may be in the state that it has returned to
        (case(onset=21, returned_to=24), 21),
        (case(returned_to=20), 25),  # it may have begun before step 20, nobody knows
        (case("weights-not-finite", returned_to=20), None),  # whose state has finite norms, whenever it began
        (case("loss-not-finite", onset=21), None),  # whose update was never applied
    ],
)
def test_what_the_run_has_returned_from_makes_no_state_sick_where_the_return_went_to_before_it(open_now, since):
    assert harmed_since(open_now) == since


def test_trouble_that_was_answered_by_something_else_than_a_return_makes_states_sick_as_before():
    open_now = case(onset=21)
    answer(open_now, None)
    assert harmed_since(open_now) == 21


def test_states_taken_after_a_return_are_intact_while_it_is_watched_and_prove_themselves_when_it_is_over():
    states, watched = known(s0=Condition.GOOD, s20=Condition.INTACT), case(onset=21, returned_to=20)
    states.observed(21, [watched], good_after=2)
    key = take(states, 22)
    for step in range(23, 40):
        states.observed(step, [watched], good_after=2)
    assert states.get(key).verdict.condition is Condition.INTACT, "it has not proved itself while trouble is watched"
    states.observed(40, [], good_after=2)
    states.observed(41, [], good_after=2)
    assert states.get(key).verdict.condition is Condition.GOOD


def test_what_is_seen_again_after_the_return_makes_states_sick_from_where_it_begins_then():
    states, watched = known(s0=Condition.GOOD, s20=Condition.INTACT), case(onset=21, returned_to=20)
    for step in range(21, 40):
        watched.feed(1.0, step)
        states.observed(step, [watched], good_after=32)
        if step in (22, 35):
            take(states, step)
    watched.fire(incident("reward-collapse", step=40, onset=34))
    states.observed(40, [watched], good_after=32)
    assert [each.step for each in states.states if each.verdict.is_sick] == [35]
    assert verdict_when_taken(40, norms={"w": 1.0}, open_incident=states.open).is_sick
    assert chosen(states, step=40) == "s22"


def test_one_that_was_returned_from_does_not_excuse_another_that_was_not():
    states = known(s0=Condition.GOOD, s20=Condition.INTACT)
    both = [case(onset=21, returned_to=20), case("loss-divergence", step=33, onset=30)]
    for step in (25, 29, 31):
        take(states, step)
    states.observed(33, both, good_after=32)
    assert [each.step for each in states.states if each.verdict.is_sick] == [31]
    take(states, 33)
    assert states.get("s33").verdict.because == "loss-divergence began at step 30"
    states.observed(34, both[:1], good_after=32)
    assert not states.get(take(states, 35)).verdict.is_sick


COURSES = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.integers(1, 12)),
        st.tuples(st.just("trouble"), st.integers(0, 12)),
        st.tuples(st.just("return"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(COURSES)
def test_whatever_comes_and_goes_a_state_is_sick_exactly_where_it_was_taken_of_harmed_weights(events):
    states, step, open_now = known(s0=Condition.GOOD), 0, None
    harmed_from = None  # the first harmed step of what the weights of this moment hold, counted independently
    truly_sick = set()
    for event, value in events:
        if event == "train":
            for _ in range(value):
                step += 1
                if open_now is not None:
                    open_now.feed(1.0, step)
                states.observed(step, [] if open_now is None else [open_now], good_after=32)
            if states.get(f"s{step}") is None:
                key = take(states, step)
                truly_sick |= {key} if harmed_from is not None else set()
        elif event == "trouble" and step > 0:
            onset = max(1, step - value)
            seen = incident("reward-collapse", step=step, onset=onset)
            if open_now is None:
                open_now = Case(incident=seen)
            else:
                open_now.fire(seen)
            if open_now.plan is not None and open_now.returned_to is None and open_now.phase != "open":
                open_now.relapsed(seen)
            harmed_from = open_now.incident.onset_step
            truly_sick |= {each.key for each in states.states if each.step >= harmed_from}
            states.observed(step, [open_now], good_after=32)
        elif event == "return" and open_now is not None and open_now.phase == "open":
            left = [each for each in states.states if each.step <= max(0, step - value)]
            to = left[-1].step
            states.keep_only({each.key for each in left})
            truly_sick &= {each.key for each in left}
            states.open = None  # as the keeper does
            answer(open_now, to)
            harmed_from = None if to < harmed_from else harmed_from
            step = to
        assert {each.key for each in states.states if each.verdict.is_sick} == truly_sick

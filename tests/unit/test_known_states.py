"""Which state a run returns to, by what is known of where its trouble began."""

from __future__ import annotations

import pytest

from self_healing.adapters.rollback.known_states import KnownStates
from self_healing.core.failure import FailureType, Severity
from self_healing.core.incident import Incident
from self_healing.snapshots.verdicts import Condition, StateVerdict


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


def chosen(states, *, before_step=None, step=25):
    return states.choose(lambda _key: True, step, before_step=before_step, depth=0, min_steps=None).key


@pytest.mark.parametrize(
    ("seen", "key"),
    [
        ([], "s20"),  # a crash: the newest that is intact
        ([incident("reward-collapse", step=25)], "s10"),  # nobody knows when it began: one that has proved itself
        ([incident("reward-collapse", step=25, onset=21)], "s20"),  # the newest that is intact before it
        ([incident("reward-collapse", step=25, onset=15)], "s10"),
        ([incident("reward-collapse", step=25, onset=5)], "s0"),
        ([incident("weights-not-finite", step=25)], "s20"),  # an intact state is finite: it was taken before
    ],
)
def test_where_trouble_began_decides_which_states_are_trusted(seen, key):
    states = known(s0=Condition.GOOD, s10=Condition.GOOD, s20=Condition.INTACT)
    states.observed(25, seen, good_after=32)
    assert chosen(states) == key


def test_a_plan_that_names_a_step_is_taken_at_its_word():
    states = known(s0=Condition.GOOD, s10=Condition.GOOD, s20=Condition.INTACT)
    states.observed(25, [incident("reward-collapse", step=25)], good_after=32)
    assert chosen(states, before_step=22) == "s20"

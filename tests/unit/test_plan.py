"""Merging the wishes of many ranks does not depend on who asks first, or twice."""

from __future__ import annotations

from functools import reduce
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from self_healing.actions.alert import Alert
from self_healing.actions.clear_cache import ClearCache
from self_healing.actions.roll_back import RollBack
from self_healing.actions.scale_learning_rate import ScaleLearningRate
from self_healing.actions.stop_run import StopRun
from self_healing.actions.wait import Wait
from self_healing.core.failure import Effect, FailureType, Severity
from self_healing.core.plan import Plan, merge

ACTIONS = st.sampled_from(
    [Wait(), Alert(text="x"), ClearCache(), RollBack(), RollBack(depth=1), ScaleLearningRate(factor=0.5), StopRun()]
)
PLANS = st.builds(
    Plan,
    step=st.integers(0, 3),
    rank=st.integers(0, 2),
    incident=st.sampled_from(["loss-spike", "loss-divergence"]),
    failure=st.sampled_from([FailureType.LOSS_SPIKE, FailureType.DIVERGENCE]),
    severity=st.sampled_from(Severity),
    actions=st.lists(ACTIONS, max_size=3).map(tuple),
    because=st.sampled_from(["", "a", "b"]),
)
WISHES = st.none() | PLANS


@given(WISHES, WISHES)
def test_merge_is_commutative(a, b):
    assert merge([a, b]) == merge([b, a])


@given(WISHES, WISHES, WISHES)
def test_merge_is_associative(a, b, c):
    assert merge([merge([a, b]), c]) == merge([a, merge([b, c])]) == merge([a, b, c])


@given(WISHES)
def test_merge_is_idempotent_and_none_is_neutral(a):
    assert merge([a, a]) == a
    assert merge([a, None]) == a


@given(st.lists(WISHES, max_size=4))
def test_every_order_of_ranks_gives_the_same_plan(wishes):
    assert len({repr(merge(order)) for order in permutations(wishes)}) == 1
    assert merge(wishes) == reduce(lambda x, y: merge([x, y]), wishes, None)


@given(st.lists(PLANS, min_size=1, max_size=5))
def test_the_worst_incident_wins(plans):
    assert merge(plans).severity == max(plan.severity for plan in plans)


def test_a_plan_has_the_largest_effect_of_its_actions():
    plan = Plan(
        step=0, incident="x", failure=FailureType.OTHER, severity=Severity.ERROR, because="",
        actions=(ClearCache(), RollBack(), ScaleLearningRate(factor=0.5)),
    )  # fmt: skip
    assert plan.effect is Effect.RECIPE
    assert plan.counts


def test_stopping_or_an_undo_uses_no_budget():
    stop = Plan(
        step=0, incident="x", failure=FailureType.OTHER, severity=Severity.ERROR, because="", actions=(StopRun(),)
    )
    undo = Plan(
        step=0, incident="x", failure=FailureType.OTHER, severity=Severity.ERROR, because="",
        actions=(ScaleLearningRate(factor=2.0),), is_undo=True,
    )  # fmt: skip
    assert not stop.counts
    assert not undo.counts

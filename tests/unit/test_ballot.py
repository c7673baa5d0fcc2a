"""What ranks tell each other in a vote is read as it was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from self_healing.actions.alert import Alert
from self_healing.core.action import Action
from self_healing.core.ballot import (
    HEADER_LENGTH,
    MOST_STATES,
    Header,
    Round,
    Tally,
    digest_of,
    wish_as_text,
    wish_from_text,
)
from self_healing.core.discover import discover_classes
from self_healing.core.errors import RanksParted
from self_healing.core.failure import FailureType, Severity
from self_healing.core.plan import Plan

ACTIONS = discover_classes("self_healing.actions", Action)

HEADERS = st.builds(
    Header, round=st.sampled_from(Round), number=st.integers(0, 2**40), step=st.integers(0, 2**40), acts=st.booleans(),
    size=st.integers(0, 2**30), next_state=st.none() | st.integers(0, 2**40), step_time_us=st.integers(0, 2**40),
    has_failed=st.booleans(), digest=st.integers(0, 2**57),
    states=st.lists(st.integers(0, 2**40), max_size=MOST_STATES, unique=True).map(sorted).map(tuple),
)  # fmt: skip


@given(HEADERS)
def test_a_header_is_read_as_it_was_written(header):
    numbers = header.to_numbers()
    assert len(numbers) == HEADER_LENGTH
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    assert Header.of_numbers(numbers) == header


@pytest.mark.parametrize("numbers", [[], [2] + [0] * (HEADER_LENGTH - 1), [1, 9] + [0] * (HEADER_LENGTH - 2)])
def test_what_is_no_header_of_ours_is_refused(numbers: Sequence[int]):
    with pytest.raises(RanksParted, match="another language"):
        Header.of_numbers(numbers)


def test_only_states_that_all_ranks_hold_can_be_returned_to():
    headers = [Header(round=Round.VOTE, number=0, step=9, states=states) for states in ((0, 4, 8), (0, 4), (4, 8))]
    tally = Tally.of([each.to_numbers() for each in headers], headers[0])
    assert tally.states == (4,)


def test_the_slowest_rank_is_measured_by_the_others():
    headers = [Header(round=Round.VOTE, number=0, step=9, step_time_us=us) for us in (100, 110, 300, 90)]
    assert Tally(tuple(headers)).slowest() == (2, 3.0)
    assert Tally((headers[0], replace(headers[1], step_time_us=0))).slowest() is None
    assert Tally(tuple(headers[:1])).slowest() is None


def _made(kind):
    """Make an action with whatever it must be given."""
    return kind(**{item.name: 0.5 for item in fields(kind) if item.default is MISSING and item.init})


@pytest.mark.parametrize("kind", ACTIONS.values(), ids=ACTIONS.keys())
def test_a_wish_is_read_as_it_was_told(kind):
    plan = Plan(
        step=7, rank=2, incident="x", failure=FailureType.OTHER, severity=Severity.ERROR, because="1 > nan",
        actions=(_made(kind), Alert(text="a")), instead_of=("b: c",), onset_step=3,
    )  # fmt: skip
    told, by_hook = wish_from_text(wish_as_text(plan, by_hook=True, actions=ACTIONS), ACTIONS)
    assert (told, by_hook) == (plan, True)
    assert digest_of(told) == digest_of(plan) > 0

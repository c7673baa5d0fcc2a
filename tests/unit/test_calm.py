"""Steps that can wait to be looked at: those like the ones before them."""

from __future__ import annotations

import math

import pytest

from self_healing.adapters.run.calm import MEMORY, Calm


@pytest.fixture
def calm():
    made = Calm()
    assert not any(made.is_usual(2.0 + 0.1 * (i % 3), 1.0) for i in range(MEMORY)), "nothing is known"
    return made


def test_a_step_like_those_before_it_can_wait(calm):
    assert all(calm.is_usual(2.1 - 0.01 * i, 1.0) for i in range(50))


@pytest.mark.parametrize(
    ("loss", "norm"),
    [(2.3, 1.0), (2.0, 1.1), (math.nan, 1.0), (2.0, math.inf), (2.0, math.nan), (0.0, 1.0), (2.0, 0.0)],
)
def test_anything_else_cannot(loss, norm, calm):
    assert not calm.is_usual(loss, norm)


def test_a_loss_that_is_not_finite_is_not_what_others_are_compared_with(calm):
    calm.is_usual(math.inf, math.inf)
    assert not calm.is_usual(100.0, 1.0)
    assert not calm.is_usual(2.0, 100.0)

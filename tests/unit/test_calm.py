"""Steps that can wait to be looked at: those like the ones before them."""

from __future__ import annotations

import math

import pytest

from self_healing.adapters.trainer.calm import MEMORY, Calm


@pytest.fixture
def calm():
    made = Calm()
    assert not any(made.is_usual({"loss": 2.0 + 0.1 * (i % 3), "grad_norm": 1.0}) for i in range(MEMORY)), (
        "nothing is known"
    )
    return made


def test_a_step_like_those_before_it_can_wait(calm):
    assert all(calm.is_usual({"loss": 2.1 - 0.01 * i, "grad_norm": 1.0}) for i in range(50))


@pytest.mark.parametrize(
    "values",
    [
        {"loss": 2.3, "grad_norm": 1.0},
        {"loss": 2.0, "grad_norm": 1.1},
        {"loss": math.nan, "grad_norm": 1.0},
        {"loss": 2.0, "grad_norm": math.inf},
        {"loss": 2.0, "grad_norm": math.nan},
        {"loss": 0.0, "grad_norm": 1.0},
        {"loss": 2.0, "grad_norm": 0.0},
        {"loss": 2.0},
    ],
)
def test_anything_else_cannot(values, calm):
    assert not calm.is_usual(values)


def test_a_loss_that_is_not_finite_is_not_what_others_are_compared_with(calm):
    calm.is_usual({"loss": math.inf, "grad_norm": math.inf})
    assert not calm.is_usual({"loss": 100.0, "grad_norm": 1.0})
    assert not calm.is_usual({"loss": 2.0, "grad_norm": 100.0})

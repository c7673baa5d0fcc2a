"""Every second of a training belongs to one kind of spending, and they add up."""

from __future__ import annotations

import random

import pytest

from self_healing.core.goodput import Spending, TimeAccount


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s

    def passes(self, seconds):
        self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def account(clock):
    return TimeAccount(clock)


def spent(account):
    return {str(kind): seconds for kind, seconds in account.seconds().items() if seconds}


def train(account, clock, *, until, each_s):
    """Train up to a step."""
    for step in range(account.first_step + len(account._until), until + 1):
        clock.passes(each_s)
        account.step_done(step)


def test_start_up_lasts_until_the_first_step_and_what_follows_the_last_one_is_other(account, clock):
    clock.passes(3)
    account.steps_begin(0)
    train(account, clock, until=4, each_s=2)
    clock.passes(0.5)
    account.steps_over()
    clock.passes(1)
    assert spent(account) == {"start_up": 3, "productive": 8, "other": 1.5}
    assert account.goodput() == 8 / 12.5


def test_the_innermost_kind_counts(account, clock):
    account.steps_begin(0)
    clock.passes(1)
    with account.spent_on(Spending.EVALUATING):
        clock.passes(2)
        with account.spent_on(Spending.SAVING):
            clock.passes(4)
        clock.passes(8)
    clock.passes(16)
    account.step_done(1)
    assert spent(account) == {"productive": 17, "evaluating": 10, "saving": 4}


def test_a_kind_is_left_also_by_an_exception(account, clock):
    account.steps_begin(0)

    def fail():
        with account.spent_on(Spending.SNAPSHOTTING):
            clock.passes(2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    clock.passes(1)
    assert spent(account) == {"productive": 1, "snapshotting": 2}


def test_steps_that_are_undone_are_replayed_and_their_second_training_is_productive(account, clock):
    account.steps_begin(0)
    train(account, clock, until=10, each_s=1)
    clock.passes(0.25)  # of a step that fails
    with account.spent_on(Spending.RESTORING):
        clock.passes(0.5)
        account.returned(6)
    assert spent(account) == {"productive": 6, "replayed": 4.25, "restoring": 0.5}
    train(account, clock, until=12, each_s=2)
    assert spent(account) == {"productive": 18, "replayed": 4.25, "restoring": 0.5}
    account.returned(10)
    assert spent(account) == {"productive": 14, "replayed": 8.25, "restoring": 0.5}


def test_training_that_is_entered_anew_restores_until_its_first_step(account, clock):
    clock.passes(1)
    account.steps_begin(20)
    train(account, clock, until=25, each_s=1)
    account.steps_left()
    clock.passes(7)
    account.steps_begin(22)
    train(account, clock, until=24, each_s=3)
    assert spent(account) == {"start_up": 1, "productive": 8, "replayed": 3, "restoring": 7}
    account.steps_begin(24)  # every step tells of its beginning
    assert spent(account)["productive"] == 8


def test_a_return_to_before_the_first_step_undoes_all_there_is(account, clock):
    account.steps_begin(20)
    train(account, clock, until=22, each_s=1)
    account.returned(5)
    assert spent(account) == {"replayed": 2}


def test_kinds_add_up_whatever_happens(account, clock):
    draw, step, depth = random.Random(1), 0, 0
    account.steps_begin(0)
    for _ in range(5000):
        clock.passes(draw.random())
        match draw.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                step += 1
                account.step_done(step)
            case 5:
                account.enter(draw.choice(list(Spending)[1:]))
                depth += 1
            case 6 | 7 | 8 if depth:
                account.leave()
                depth -= 1
            case 9:
                step = draw.randrange(max(0, step - 3), step + 1)
                account.returned(step)
    seconds = account.seconds()
    assert sum(seconds.values()) == pytest.approx(clock.now_s - 100.0)
    assert all(value >= 0 for value in seconds.values())
    assert 0 < account.goodput() < 1


def test_before_any_time_has_passed_there_is_no_goodput(account):
    assert account.goodput() == 0.0

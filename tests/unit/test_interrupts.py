"""Handlers of several runs in one process: each signal reaches who is there, however the runs ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from self_healing.adapters.ending.interrupts import Interrupts

TERM, USR1 = signal.SIGTERM, signal.SIGUSR1


@pytest.fixture
def heard():
    """What the handler of the program has heard; it is put back afterwards."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (TERM, USR1)}
    signal.signal(TERM, lambda number, frame: came.append(number))
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def begun(*numbers, preempting=()):
    interrupts = Interrupts(numbers or (TERM,), preempting)
    interrupts.install()
    return interrupts


def ask():
    os.kill(os.getpid(), TERM)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_runs_that_end_in_any_order_leave_the_signal_to_the_program(order, heard):
    of_program = signal.getsignal(TERM)
    runs = [begun() for _ in range(3)]
    for number in order:
        runs[number].restore()
    assert signal.getsignal(TERM) is of_program
    ask()
    assert heard == [TERM]
    assert all(run.received is None for run in runs)


def test_a_run_that_ends_leaves_the_handler_of_one_that_began_later_in_place(heard):
    first, second = begun(), begun()
    first.restore()
    ask()
    assert second.received == TERM
    assert heard == []
    second.pass_on(TERM)
    assert heard == [TERM]
    assert first.received is None


def test_a_handler_that_was_put_over_ours_keeps_the_signal_and_can_pass_it_on_when_the_run_is_over(heard):
    run = begun()
    ours, over = signal.getsignal(TERM), []

    def chained(number, frame):
        over.append(number)
        ours(number, frame)

    signal.signal(TERM, chained)
    ask()
    assert run.received == TERM
    assert heard == []
    run.pass_on(TERM)
    assert heard == [TERM]
    assert over == [TERM], "the handler over ours had the signal already"
    assert signal.getsignal(TERM) is chained
    ask()
    assert heard == [TERM, TERM]


def test_a_run_that_nobody_has_closed_is_not_taken_for_a_handler_of_the_program():
    before = signal.getsignal(TERM)
    signal.signal(TERM, signal.SIG_DFL)
    try:
        left, run = begun(preempting=[TERM]), begun(preempting=[TERM])
        assert run.is_preemption(TERM)
        run.restore()
        left.restore()
        assert signal.getsignal(TERM) is signal.SIG_DFL
    finally:
        signal.signal(TERM, before)


def test_a_signal_that_comes_after_the_runs_ends_the_process():
    script = """
import os, signal, time
from self_healing.adapters.ending.interrupts import Interrupts
runs = [Interrupts([signal.SIGTERM]) for _ in range(2)]
for run in runs:
    run.install()
for run in runs:
    run.restore()
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == -TERM

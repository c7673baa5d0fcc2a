"""Every second of a run, over all its attempts and the time between them, belongs to one class."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from self_healing.core.errors import LedgerError
from self_healing.core.goodput import CLASS_OF, Spending, TimeClass
from self_healing.core.ledger import Entry, iter_ledger
from self_healing.report.spent_time import SpentTime
from self_healing.report.where_time_went import where_time_went

LEDGERS = sorted((Path(__file__).parents[1] / "replay" / "ledgers").glob("*.jsonl"))


class Book:
    """Lines of a run whose clock is moved by hand."""

    def __init__(self):
        self.now = 1000.0
        self.attempt = 0
        self.entries = []

    def write(self, kind, name, *, after=0.0, step=0, **body):
        self.now += after
        self.entries.append(Entry(1, len(self.entries), max(1, self.attempt), self.now, step, 0, kind, name, body))

    def started(self, *, after=0.0, number=None):
        """By a supervisor."""
        self.attempt += 1
        self.write("note", "attempt-began", after=after, attempt=number or self.attempt)

    def over(self, *, after=0.0, ended_by="exit"):
        """As the supervisor sees it."""
        self.write("note", "attempt-ended", after=after, ended_by=ended_by)
        self.write("note", "decided")

    def begins(self, *, after=0.0, continues=True, supervised=True):
        self.attempt += not supervised
        self.write("config", "resolved-configuration", after=after, continues=continues)

    def trains(self, first, last, *, each=1.0):
        for step in range(first + 1, last + 1):
            self.write("signal", "metrics", after=each, step=step, values={"loss": 1.0})

    def tells(self, step, *, first=0, **seconds):
        self.write("note", "goodput", step=step, first_step=first, seconds=seconds)

    def ends(self, step=0):
        self.write("note", "run-ended", step=step, exit_reason="completed")

    def told(self, **given):
        return where_time_went(self.entries, **given)


@pytest.fixture
def book():
    return Book()


def spent(told):
    return {str(kind): round(seconds, 6) for kind, seconds in told.seconds.items() if seconds > 1e-9}


def test_a_run_without_lines_has_no_time_and_no_goodput(book):
    told = book.told()
    assert (told.wall_s, told.goodput, told.goodput_at_most, told.attempts) == (0, None, None, 0)
    assert told.to_json()["goodput"] is None


def test_one_training_is_what_it_told_of_itself(book):
    book.begins(supervised=False)
    book.now += 3
    book.trains(0, 10)
    book.now += 2
    book.tells(10, start_up=3, productive=9, replayed=0.5, made_up=0.25, restoring=0.25, saving=1, snapshotting=1)
    book.ends()
    told = book.told()
    assert spent(told) == {"start_up": 3, "productive": 9, "replayed": 0.5, "recovery": 0.5, "checkpointing": 2}
    assert told.goodput == 9 / 15
    assert told.goodput_at_most == told.goodput
    assert told.caveats == ()


def supervised(book):
    """Killed at step 10 after a checkpoint at step 6, then finished: 5 + 3 + 10, 2 between, 5 + 3 + 4, 1 afterwards."""
    book.started(number=1)
    book.begins(after=5, continues=False)
    book.now += 3
    book.trains(0, 10)
    book.tells(10, start_up=3, productive=10)
    book.over()
    book.started(after=2)
    book.begins(after=5)
    book.now += 3
    book.trains(6, 10)
    book.tells(10, first=6, start_up=3, productive=4)
    book.ends()
    book.over(after=1)


def test_the_time_between_two_attempts_and_up_to_the_first_step_of_the_second_is_restarts(book):
    supervised(book)
    told = book.told()
    assert spent(told) == {"start_up": 8, "productive": 10, "replayed": 4, "restarts": 10, "other": 1}
    assert told.wall_s == book.now - 1000
    assert told.attempts == 2


def test_without_a_supervisor_it_is_time_in_which_the_run_was_down(book):
    book.begins(supervised=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    book.begins(after=3600, supervised=False)
    book.trains(6, 10)
    book.tells(10, first=6, productive=4)
    assert spent(book.told()) == {"productive": 10, "replayed": 4, "down": 3600}


def test_a_second_job_in_the_folder_of_a_first_one_was_started_by_somebody(book):
    supervised(book)
    book.started(after=3600, number=1)
    book.begins(after=5)
    book.tells(10, first=10, start_up=0)
    book.over()
    assert spent(book.told())["down"] == 3600


def test_steps_after_the_last_account_of_a_killed_process_are_estimated_and_the_rest_is_unknown(book):
    book.started(number=1)
    book.begins(continues=False)
    book.trains(0, 60)
    book.tells(60, productive=60)
    book.trains(60, 80)
    book.now += 7  # a save that nobody has told of
    book.trains(80, 81)
    book.over(after=0.5)
    told = book.told()
    assert spent(told) == {"productive": 81, "unknown": 7.5}
    assert told.estimated_s == 21
    assert told.goodput == 81 / 88.5
    assert told.goodput_at_most == 1
    assert told.caveats[0].startswith("7.5 s are unknown")


def test_what_a_process_killed_before_its_first_account_has_trained_is_estimated_from_its_lines(book):
    book.started(number=1)
    book.begins(after=5, continues=False)
    book.now += 3
    book.trains(0, 20)
    book.over()
    book.started(after=2)
    book.begins(after=5)
    book.now += 3
    book.trains(15, 25)
    book.tells(25, first=15, start_up=3, productive=10)
    told = book.told()
    assert spent(told) == {"start_up": 8, "productive": 25, "replayed": 5, "restarts": 10}
    assert told.estimated_s == 20


def test_steps_told_of_several_at_a_time_are_as_long_as_they_are_on_average(book):
    book.begins(supervised=False)
    book.tells(0)
    for step in range(1, 81):
        book.write("signal", "metrics", after=8.0 if step % 8 == 1 else 0.0, step=step)
    told = book.told()
    assert spent(told) == {"productive": 80}
    assert told.estimated_s == 80


def test_steps_that_a_return_has_undone_after_the_last_account_are_replayed(book):
    book.begins(supervised=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    book.trains(10, 20)
    book.write("signal", "returned", step=12, from_step=20)
    book.trains(12, 14)
    assert spent(book.told()) == {"productive": 14, "replayed": 8}


def test_the_silence_of_a_process_that_hung_is_stalled(book):
    book.started(number=1)
    book.begins(continues=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    book.over(after=300, ended_by="hang")
    assert spent(book.told()) == {"productive": 10, "stalled": 300}


def test_an_attempt_without_the_healer_in_it_is_unknown_and_said_to_be(book):
    book.started(number=1)
    book.over(after=50)
    told = book.told()
    assert spent(told) == {"unknown": 50}
    assert (told.goodput, told.goodput_at_most) == (0, 1)
    assert told.caveats[1] == "attempt 1 told nothing: the healer was not in it, or not yet"


def test_an_attempt_that_fails_before_its_first_step_undoes_nothing(book):
    book.begins(supervised=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    book.begins(supervised=False)
    book.now += 2
    book.tells(0, start_up=2)  # it would have gone on from step 10, and does not know yet
    book.begins(supervised=False)
    book.trains(10, 15)
    book.tells(15, first=10, productive=5)
    assert spent(book.told()) == {"productive": 15, "restarts": 2}
    postmortem = SpentTime()
    for entry in book.entries:
        if entry.name == "goodput":
            postmortem.take(entry)
    assert postmortem.to_json()["seconds"]["productive"] == 15


def test_another_run_in_the_same_folder_begins_with_its_own_process(book):
    supervised(book)
    book.started(after=3600, number=1)
    book.begins(after=5, continues=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    told = book.told()
    assert spent(told) == {"start_up": 5, "productive": 10}
    assert told.attempts == 1


def test_a_second_training_of_the_same_command_is_no_restart_but_a_launcher_that_starts_its_workers_again_is(book):
    for ends, gap in ((True, "other"), (False, "restarts")):
        lines = Book()
        lines.started(number=1)
        lines.begins(continues=False)
        lines.trains(0, 10)
        lines.tells(10, productive=10)
        if ends:
            lines.ends()
        lines.begins(after=4, supervised=False)
        lines.trains(10, 12)
        lines.tells(12, first=10, productive=2)
        assert spent(lines.told()) == {"productive": 12, gap: 4}


def test_a_clock_that_was_set_forward_leaves_time_unknown_instead_of_productive(book):
    book.begins(supervised=False)
    book.trains(0, 10)
    book.now += 3600
    book.tells(10, productive=10)
    assert spent(book.told()) == {"productive": 10, "unknown": 3600}


def test_a_run_that_is_still_going_on_is_unknown_since_its_last_line(book):
    book.begins(supervised=False)
    book.trains(0, 10)
    book.tells(10, productive=10)
    assert spent(book.told(until_s=book.now + 5)) == {"productive": 10, "unknown": 5}
    book.ends()
    assert spent(book.told(until_s=book.now + 5)) == {"productive": 10, "other": 5}


def test_what_could_be_read_of_a_damaged_ledger_is_told_with_the_reason(book):
    supervised(book)

    def damaged():
        yield from book.entries
        raise LedgerError("ledger.jsonl: a newer schema")

    told = where_time_went(damaged())
    assert told.wall_s == book.now - 1000
    assert told.caveats == ("the ledger could not be read to its end: ledger.jsonl: a newer schema",)


@pytest.mark.parametrize("path", LEDGERS, ids=lambda path: path.stem)
def test_recorded_ledgers_add_up_to_their_own_accounts(path):
    entries = list(iter_ledger(path))
    account = [entry for entry in entries if entry.name == "goodput"][-1].body
    told = where_time_went(entries)
    assert told.seconds[TimeClass.PRODUCTIVE] == pytest.approx(account["seconds"]["productive"])
    assert told.wall_s == pytest.approx(sum(account["seconds"].values()), abs=0.01)
    assert told.seconds[TimeClass.UNKNOWN] < 0.001
    assert told.goodput == pytest.approx(account["goodput"], abs=0.01)


def test_every_kind_that_a_process_counts_has_a_class():
    assert set(CLASS_OF) == set(Spending)


SECONDS = st.floats(0, 100, allow_nan=False)
STEPS = st.integers(0, 30)
LINES = st.lists(
    st.one_of(
        st.tuples(st.just("started"), SECONDS, st.sampled_from([None, 1])),
        st.tuples(st.just("over"), SECONDS, st.sampled_from(["exit", "hang", "nan"])),
        st.tuples(st.just("begins"), SECONDS, st.booleans(), st.booleans()),
        st.tuples(st.just("trains"), STEPS, st.integers(1, 5), SECONDS),
        st.tuples(st.just("tells"), STEPS, STEPS, st.dictionaries(st.sampled_from([str(kind) for kind in Spending]), SECONDS)),
        st.tuples(st.just("returned"), STEPS),
        st.tuples(st.just("ends")),
    ),
    max_size=30,
)  # fmt: skip


def written(lines):
    book = Book()
    for what, *values in lines:
        match what:
            case "started":
                book.started(after=values[0], number=values[1])
            case "over":
                book.over(after=values[0], ended_by=values[1])
            case "begins":
                book.begins(after=values[0], continues=values[1], supervised=values[2])
            case "trains":
                book.trains(values[0], values[0] + values[1], each=values[2])
            case "tells":
                book.tells(values[0], first=values[1], **values[2])
            case "returned":
                book.write("signal", "returned", step=values[0])
            case "ends":
                book.ends()
    return book


@settings(max_examples=150, deadline=None)
@given(LINES)
def test_whatever_the_lines_say_no_class_is_negative_and_all_add_up(lines):
    told = written(lines).told()
    assert all(seconds >= -1e-9 and math.isfinite(seconds) for seconds in told.seconds.values())
    assert told.estimated_s <= told.wall_s + 1e-6
    assert set(told.seconds) == set(TimeClass)
    assert told.goodput is None or 0 <= told.goodput <= told.goodput_at_most <= 1


@settings(max_examples=150, deadline=None)
@given(LINES, st.randoms(use_true_random=False))
def test_clocks_that_jump_make_nothing_negative(lines, random):
    order = written(lines).entries
    random.shuffle(order)
    assert all(seconds >= -1e-9 for seconds in where_time_went(order).seconds.values())


ATTEMPTS = st.lists(
    st.tuples(SECONDS, SECONDS, STEPS, st.integers(1, 10), SECONDS, st.booleans(), st.sampled_from(["exit", "hang"])),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150, deadline=None)
@given(ATTEMPTS)
def test_true_accounts_add_up_to_the_time_from_the_first_line_to_the_last(attempts):
    book, productive = Book(), 0.0
    for number, (before, start_up, first, steps, each, has_told, ended_by) in enumerate(attempts, start=1):
        book.started(after=before, number=number)
        book.begins(after=before)
        book.now += start_up
        book.trains(first, first + steps, each=each)
        if has_told:
            book.tells(first + steps, first=first, start_up=start_up, productive=steps * each)
        productive += steps * each
        book.over(after=before, ended_by=ended_by)
    told = book.told()
    times = [entry.time for entry in book.entries]
    assert told.wall_s == pytest.approx(max(times) - min(times), abs=1e-6)
    assert told.seconds[TimeClass.PRODUCTIVE] + told.seconds[TimeClass.REPLAYED] <= productive + 1e-6
    assert told.seconds[TimeClass.DOWN] == 0

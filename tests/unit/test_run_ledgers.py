"""What a training and its supervisor wrote is one story: in the order of time, each attempt with one number."""

from __future__ import annotations

import pytest

from self_healing.core.errors import LedgerError
from self_healing.core.ledger import Ledger, LedgerReading
from self_healing.core.run_directory import ledger_path, supervisor_ledger_path
from self_healing.core.run_ledgers import iter_run
from self_healing.report.postmortem import build_postmortem


class Clock:
    """A run directory in which both write, one after the other."""

    def __init__(self, folder):
        self.own, self.supervisor = ledger_path(folder), supervisor_ledger_path(folder)
        self.now = 100.0
        self._supervisor = Ledger(self.supervisor, environ={})

    def trains(self, *lines):
        """One process with its own ledger."""
        book = Ledger(self.own, environ={})
        for line in lines:
            self._write(book, *line)
        book.close()

    def supervises(self, name, body=None, *, kind="note", step=0):
        self._write(self._supervisor, kind, name, step, body or {})

    def _write(self, book, kind, name, step, body):
        self.now += 1
        book.append(kind, name, step=step, time_s=self.now, body=body)
        book.flush()

    def close(self):
        self._supervisor.close()

    def told(self, **given):
        return [(entry.attempt, entry.name) for entry in iter_run(self.own, self.supervisor, **given)]


@pytest.fixture
def run(tmp_path):
    clock = Clock(tmp_path)
    yield clock
    clock.close()


def fails(run, number, fine, step):
    about = {"failure": "crash", "class": fine, "severity": "error", "because": f"attempt {number} died"}
    run.supervises("attempt-ended", {"attempt": number}, step=step)
    run.supervises("exited", {"event": "opened", **about}, kind="incident", step=step)
    return about


def again(run, about, *changes, step):
    run.supervises("decided", {"decision": "again", "changes": list(changes)}, step=step)
    run.supervises(
        "exited", {"event": "closed", "reason": "another attempt is made", **about}, kind="incident", step=step
    )


def three_attempts(run):
    """One that comes to step 7, one that dies before it has a ledger, one that finishes."""
    run.supervises("attempt-began")
    run.trains(("config", "first", 0, {}), ("signal", "metrics", 5, {"values": {"loss": 2.0}}))
    again(run, fails(run, 1, "segfault", 7), "learning rate 0.2 -> 0.1", step=7)
    run.supervises("attempt-began")
    again(run, fails(run, 2, "missing", 0), step=0)
    run.supervises("attempt-began")
    run.trains(
        ("config", "third", 5, {}), ("note", "killed", 5, {"of": 1, "last_step": 6}),
        ("signal", "metrics", 9, {"values": {"loss": 1.0}}),
    )  # fmt: skip
    run.supervises("attempt-ended", {"attempt": 3}, step=9)


def test_an_attempt_that_only_the_supervisor_knows_of_is_counted(run):
    three_attempts(run)
    told = run.told()
    assert [name for number, name in told if number == 1] == [
        "attempt-began", "first", "metrics", "attempt-ended", "exited", "decided", "exited",
    ]  # fmt: skip
    assert {name for number, name in told if number == 2} == {"attempt-began", "attempt-ended", "exited", "decided"}
    assert [name for number, name in told if number == 3] == [
        "attempt-began", "third", "killed", "metrics", "attempt-ended",
    ]  # fmt: skip


def test_what_is_said_of_an_earlier_attempt_follows_its_number(run):
    run.supervises("attempt-began")  # dies before it has a ledger
    run.supervises("attempt-began")
    run.trains(("config", "second", 0, {}))
    run.supervises("attempt-began")
    run.trains(("note", "killed", 0, {"of": 1}))
    killed = [entry for entry in iter_run(run.own, run.supervisor) if entry.name == "killed"]
    assert (killed[0].attempt, killed[0].body["of"]) == (3, 2)


def test_the_story_can_end_with_an_attempt_of_the_training_and_what_was_said_of_it(run):
    three_attempts(run)
    told = run.told(up_to=1)
    assert told[-1] == (2, "exited"), "what the supervisor found is told, the beginning of the next attempt is not"
    assert "third" not in {name for _, name in told}
    run.supervises("attempt-began")
    assert run.told()[-1] == (4, "attempt-began"), "and of one that has only begun it is known that it has"


def test_processes_started_without_the_supervisor_are_attempts_too(run):
    run.trains(("config", "by hand", 0, {}))
    run.supervises("attempt-began")
    run.trains(("config", "supervised", 0, {}))
    run.trains(("config", "again by torchrun", 0, {}))
    assert run.told() == [(1, "by hand"), (2, "attempt-began"), (2, "supervised"), (3, "again by torchrun")]


def test_a_process_started_by_hand_after_an_attempt_without_a_ledger_is_another_attempt(run):
    run.supervises("attempt-began")
    run.supervises("attempt-ended")
    run.trains(("config", "by hand", 0, {}))
    assert run.told() == [(1, "attempt-began"), (1, "attempt-ended"), (2, "by hand")]


def test_without_a_supervisor_it_is_the_ledger_as_it_is(run, tmp_path):
    run.trains(("config", "first", 0, {}))
    run.trains(("config", "second", 0, {}))
    none = tmp_path / "none.jsonl"
    assert [(e.attempt, e.name) for e in iter_run(run.own, none)] == [(1, "first"), (2, "second")]
    assert [(e.attempt, e.name) for e in iter_run(run.own, none, up_to=1)] == [(1, "first")]
    assert list(iter_run(None, none)) == []
    with pytest.raises(LedgerError):
        list(iter_run(tmp_path / "gone.jsonl", none))


def test_what_is_torn_in_either_is_counted(run):
    three_attempts(run)
    run.close()
    for path in (run.own, run.supervisor):
        with path.open("a") as file:
            file.write('{"v": 1, "seq"')
    reading = LedgerReading()
    list(iter_run(run.own, run.supervisor, reading))
    assert reading.torn == 2


def test_a_postmortem_tells_what_the_supervisor_saw_and_did(run):
    three_attempts(run)
    told = build_postmortem(
        iter_run(run.own, run.supervisor), exit_reason="completed", exception=None, last_step=None, final_metrics=None,
        started_s=None, ended_s=None, versions={}, hardware={}, environ={},
    )  # fmt: skip
    assert [(each["attempt"], each["last_step"]) for each in told.attempts] == [(1, 7), (2, 0), (3, 9)]
    assert [(each["attempt"], each["class"], each["closed"]) for each in told.incidents] == [
        (1, "segfault", "another attempt is made"), (2, "missing", "another attempt is made"),
    ]  # fmt: skip
    done = [(each["attempt"], each["actions"], each["said"], each["diagnosis"]) for each in told.recovery_actions]
    assert done == [
        (1, ["restart"], "learning rate 0.2 -> 0.1", "attempt 1 died"),
        (2, ["restart"], "started again with the same settings", "attempt 2 died"),
    ]
    assert told.final_metrics == {"loss": 1.0}

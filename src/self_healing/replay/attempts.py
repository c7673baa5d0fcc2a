"""Repeat what a supervisor decided after each attempt, from what its ledger says of the attempts."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.failure import Severity
from ..core.ledger import Entry
from ..core.run_ledgers import BEGAN, DECIDED, OVER
from ..supervisor.decide import DECIDES_BY, Again, as_recorded, decide
from ..supervisor.outcome import IncompleteNote, Outcome, from_note
from ..supervisor.settings import RunSettings
from ..supervisor.telling import INCIDENT, failure_of
from .result import Finding, ReplayResult, SupervisorDecision

_COMPARED = ("decision", "wish", "wait_s")
"""Where a decision can differ; in other words it is the same one."""


class AttemptsReplay:
    """Takes the notes of a supervisor in their order, and notes where it would decide otherwise now.

    An attempt of which something is missing or damaged is in doubt, and so is every decision after it: each depends on
    all attempts before it.
    """

    def __init__(self, result: ReplayResult) -> None:
        self._result = result
        self._story: list[Outcome] = []
        self._settings = RunSettings()
        self._changes: tuple[str, ...] = ()
        self._is_open = False
        """Whether an attempt was begun of which no decision has come yet."""
        self._is_in_doubt = False
        self.compared = 0
        self.doubts: list[str] = []
        """Why decisions cannot be held to the recorded ones, one sentence each."""
        self.differences: list[str] = []

    def take(self, entry: Entry) -> None:
        """Take a line of a ledger; what is no note of a supervisor is passed over."""
        does = {BEGAN: self._begin, OVER: self._end, DECIDED: self._decide}.get(entry.name)
        if entry.kind != "note" or does is None:
            return
        try:
            does(entry)
        except IncompleteNote as error:
            self._doubt(
                f"an earlier version has written this ledger, without {error}: its decisions cannot be repeated"
            )
        except (KeyError, TypeError, ValueError):
            self._doubt(
                f"line {entry.seq} ({entry.kind} {entry.name}) is damaged: decisions after it cannot be repeated"
            )

    def finish(self) -> None:
        """There are no more lines."""
        if self._is_open and self._story:
            self._doubt("the ledger ends before it says what follows the last attempt")

    def _begin(self, entry: Entry) -> None:
        number = _number(entry)
        if number == 1:  # another job in the same run directory
            self._story, self._is_in_doubt, self._is_open = [], False, False
        if self._is_open or number != len(self._story) + 1:
            self._doubt(f"what there was before attempt {number} is missing in part")
        self._is_open = True
        self._changes = _texts(entry.body, "changes")
        recorded = entry.body.get("settings")
        if not isinstance(recorded, Mapping) or not set(DECIDES_BY) <= set(recorded):
            raise IncompleteNote("settings")
        self._settings = RunSettings.model_validate({key: recorded[key] for key in DECIDES_BY})

    def _end(self, entry: Entry) -> None:
        outcome = from_note(entry.body, self._changes)
        if not self._is_open or outcome.attempt.number != len(self._story) + 1:
            self._doubt(f"what there was before attempt {outcome.attempt.number} is missing in part")
        self._story.append(outcome)
        self._result.runs += 1
        if outcome.succeeded:
            return
        finding = Finding(
            run=self._result.runs - 1,
            name=INCIDENT,
            failure=failure_of(outcome.fine),
            fine=outcome.fine,
            severity=Severity.ERROR,
            step=entry.step,
            because=f"attempt {outcome.attempt.number}: {outcome.says}",
        )
        self._result.incidents.append(finding)

    def _decide(self, entry: Entry) -> None:
        self._is_open = False
        number, body = _number(entry), entry.body
        if "no_room" not in body:
            raise IncompleteNote("no_room")
        if not self._story or self._story[-1].attempt.number != number:
            self._doubt(f"how attempt {number} ended is missing")
            return
        last = self._story[-1]
        decided = decide(self._story, self._settings, str(body["no_room"]))
        made = as_recorded(decided)
        self._result.decisions.append(
            SupervisorDecision(
                attempt=number,
                cause=last.fine,
                decision=str(made["decision"]),
                wish=decided.wish if isinstance(decided, Again) else "",
                wait_s=decided.wait_s if isinstance(decided, Again) else 0.0,
                changes=_texts(body, "changes"),
                because=str(made.get("because", "")),
            )
        )
        if self._is_in_doubt:
            return
        self.compared += 1
        keys = [key for key in _COMPARED if body.get(key) != made.get(key)]
        if keys:
            told = ", ".join(f"{key} was {body.get(key)}, is {made.get(key)}" for key in keys)
            self.differences.append(f"attempt {number}, {last.fine or 'succeeded'}: {told}")

    def _doubt(self, sentence: str) -> None:
        self._is_in_doubt = True
        self.doubts.append(sentence)


def _number(entry: Entry) -> int:
    number = entry.body["attempt"]
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"attempt is {number!r}")
    return number


def _texts(body: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = body.get(key, [])
    if not isinstance(found, list):
        raise TypeError(f"{key} is {found!r}")
    return tuple(str(each) for each in found)

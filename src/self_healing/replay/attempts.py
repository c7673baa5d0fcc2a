"""Repeat what a supervisor decided after each attempt, from what its ledger says of the attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.failure import Severity
from ..core.ledger import Entry
from ..core.run_ledgers import BEGAN, DECIDED, OVER
from ..supervisor.decide import DECIDES_BY, Again, Wish, as_recorded, decide, without_room
from ..supervisor.outcome import Attempt, EndedBy, Outcome
from ..supervisor.settings import RunSettings
from ..supervisor.telling import INCIDENT, failure_of
from .result import Finding, ReplayResult, SupervisorDecision

_DAMAGED = (KeyError, TypeError, ValueError)
_COMPARED = ("decision", "wish", "wait_s")
"""Where a decision can differ; in other words it is the same one."""


class AttemptsReplay:
    """Takes the notes of a supervisor in their order, and writes down where it would decide otherwise now."""

    def __init__(self, result: ReplayResult) -> None:
        self._result = result
        self._story: list[Outcome] = []
        self._settings = RunSettings()
        self._changes: tuple[str, ...] = ()
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
        except _DAMAGED:
            self.doubts.append(f"line {entry.seq} ({entry.kind} {entry.name}) is damaged and was left out")

    def _begin(self, entry: Entry) -> None:
        body = entry.body
        if body["attempt"] == 1:  # another job in the same run directory
            self._story = []
        self._changes = tuple(str(each) for each in _list(body, "changes"))
        recorded = body.get("settings")
        if not isinstance(recorded, Mapping):
            self.doubts.append("settings of `heal run` are missing from the ledger: its defaults are assumed")
            recorded = {}
        self._settings = RunSettings.model_validate({key: recorded[key] for key in DECIDES_BY if key in recorded})

    def _end(self, entry: Entry) -> None:
        outcome = _outcome(entry, self._changes)
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
        if not self._story:
            raise ValueError("a decision without an attempt")
        reason = str(entry.body.get("no_room") or "")
        decided = decide(self._story, self._settings)
        if isinstance(decided, Again) and decided.wish is not Wish.NOTHING and reason:
            decided = without_room(decided, reason, self._story, self._settings)
        last = self._story[-1]
        made = as_recorded(decided)
        self._result.decisions.append(
            SupervisorDecision(
                attempt=last.attempt.number,
                step=entry.step,
                cause=last.fine,
                decision=str(made["decision"]),
                changes=tuple(str(each) for each in _list(entry.body, "changes")),
                because=str(made.get("because", "")),
            )
        )
        keys = [key for key in _COMPARED if entry.body.get(key) != made.get(key)]
        if keys:
            told = ", ".join(f"{key} was {entry.body.get(key)}, is {made.get(key)}" for key in keys)
            self.differences.append(f"attempt {last.attempt.number}, {last.fine}: {told}")


def _outcome(entry: Entry, changes: tuple[str, ...]) -> Outcome:
    body: Mapping[str, Any] = entry.body
    step, status = body.get("step", entry.step), body["status"]
    attempt = Attempt(
        number=int(body["attempt"]),
        status=None if status is None else int(status),
        ended_by=EndedBy(str(body["ended_by"])),
        step=None if step is None else int(step),
        metric_lines=int(body.get("metric_lines", 0)),
        changes=changes,
        goes_on=str(body.get("goes_on", "")),
    )
    fine = str(body["class"])
    return Outcome(
        attempt=attempt, succeeded=bool(body.get("succeeded", not fine)), fine=fine, says=str(body.get("says", ""))
    )


def _list(body: Mapping[str, object], key: str) -> list[object]:
    found = body.get(key)
    return found if isinstance(found, list) else []

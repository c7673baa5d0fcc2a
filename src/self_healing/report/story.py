"""What a ledger tells of a run's troubles, gathered in one pass whose memory does not grow with the signals."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core import notes
from ..core.action import Action
from ..core.diagnosis import CONVINCING
from ..core.failure import Effect, Severity
from ..core.ledger import CONTINUES, Entry
from .changes import Changes, spelled
from .clean import Cleaner, as_text, number_of, seconds_of, step_of
from .made_up import MadeUp
from .recovery_actions import reflex_of, restart_of
from .spent_time import SpentTime
from .step_times import StepTimes

MOST_LISTED = 500
"""Incidents, plans and attempts listed, the newest; older ones are counted and stay in the totals."""
MOST_ADVICE = 8
MOST_METRICS = 256

RESOLVED = frozenset({"recovered", "passed", "rewound", "covered"})
"""How an incident may close so that nothing is left to do; `worse` and `new-normal` leave it to a person."""

Key = tuple[str, str]
"""What tells open incidents apart: the rule, and the class of failure."""
_SEVERITIES = tuple(str(severity) for severity in Severity)


@dataclass
class Attempt:
    """What one start of the run came to."""

    number: int
    began_s: float
    ended_s: float
    first_step: int
    last_step: int
    incidents: int = 0
    recovery_actions: int = 0
    steps_lost: int = 0
    seconds_lost: float = 0.0
    metrics: dict[str, object] = field(default_factory=dict)
    """The newest value of each metric."""
    has_begun: bool = False
    """Something was seen in it."""
    times: StepTimes = field(init=False)

    def __post_init__(self) -> None:
        """Begin to measure."""
        self.times = StepTimes(self.began_s)

    def to_json(self) -> dict[str, object]:
        """Return the attempt as the report lists it."""
        return {
            "attempt": self.number,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "seconds": round(max(0.0, self.ended_s - self.began_s), 3),
            "incidents": self.incidents,
            "recovery_actions": self.recovery_actions,
            "steps_lost": self.steps_lost,
            "seconds_lost": round(self.seconds_lost, 3),
        }


class Story:
    """Takes in ledger entries one by one; what a report needs of them is in its fields."""

    def __init__(self, actions: Mapping[str, type[Action]], clean: Cleaner) -> None:
        self._actions = actions
        self._clean = clean
        self._begin()

    def _begin(self) -> None:
        """Begin with nothing: with the first entry, and where another run begins in the same folder."""
        self.attempts: deque[Attempt] = deque(maxlen=MOST_LISTED)
        self.incidents: deque[dict[str, object]] = deque(maxlen=MOST_LISTED)
        self.recovery_actions: deque[dict[str, object]] = deque(maxlen=MOST_LISTED)
        self.changes = Changes(self._actions, self._clean)
        """Those of the attempt being read: the next process begins with what the user configured."""
        self.quarantined: deque[dict[str, object]] = deque(maxlen=MOST_LISTED)
        self.attempts_seen = self.incidents_seen = self.actions_seen = 0
        self.steps_lost = 0
        self.seconds_lost = 0.0
        self._left_out: list[int] = []
        self.lines_lost = self.unreadable = 0
        self.killed: list[Attempt] = []
        """Attempts that ended without a word."""
        self.spent = SpentTime()
        self.pages: dict[str, str] = {}
        """Where the run is to be seen, by tracker; the newest of each."""
        # All of the attempt being read: a new process opens its own incidents.
        self._latest: dict[Key, dict[str, object]] = {}
        self._diagnoses: dict[Key, Mapping[str, object]] = {}
        """The first hypothesis of the newest diagnosis."""
        self._unresolved: dict[Key, dict[str, object]] = {}
        self._unjudged: dict[tuple[str, str, str], dict[str, object]] = {}
        self._asked: dict[str, tuple[dict[str, object], Key]] = {}
        """What has asked for a return to each state, and what has led to it: there the cost is put down."""
        self._left_to_do: list[str] = []
        """What the run said at its end that it could not do, and a person has to."""
        self._made_up = MadeUp()

    def take(self, entry: Entry) -> None:
        """Take in one entry; what a damaged one does not say is left out."""
        if entry.kind == "config" and entry.body.get(CONTINUES) is False:
            self._begin()
        attempt = self._attempt_of(entry)
        attempt.ended_s = max(attempt.ended_s, entry.time)
        match entry.kind:
            case "signal":
                if not attempt.has_begun:  # lines before it hold the step of the attempt before
                    attempt.has_begun = True
                    attempt.first_step = max(0, entry.step - (entry.name == "metrics"))  # which come after a step
                attempt.last_step = entry.step
                self._take_signal(entry, attempt)
            case "incident":
                self._take_incident(entry, attempt)
            case "diagnosis":
                first = next(iter(_list(entry.body.get("hypotheses"))), None)
                self._diagnoses[_key_of(entry)] = _mapping(first)
            case "outcome":
                self._take_outcome(entry, attempt)
            case "verdict":
                unjudged = self._unjudged.pop((*_key_of(entry), as_text(entry.body.get("rung"))), None)
                if unjudged is not None:
                    unjudged["verdict"] = self._clean.line(entry.name)
            case "note":
                self._take_note(entry, attempt)
        self.unreadable += "$unwritable" in entry.body

    def _take_signal(self, entry: Entry, attempt: Attempt) -> None:
        match entry.name:
            case "metrics":
                attempt.times.seen(entry.step, entry.time)
                _keep_newest(attempt.metrics, _mapping(entry.body.get("values")))
            case "returned":
                self._take_return(entry, attempt)
            case "return-dropped":
                self._take_dropped_return(entry)

    def advice(self) -> list[str]:
        """Return what a person can do about what the last attempt left unresolved: the worst and newest first."""
        left = [
            (key, incident)
            for key, incident in self._unresolved.items()
            if incident["severity"] != "info" and not self._made_up.covers(incident)
        ]
        left.sort(key=lambda item: _SEVERITIES.index(str(item[1]["severity"])))
        fixes: dict[str, None] = dict.fromkeys(self._left_to_do)
        for key, _ in reversed(left):
            for fix in _list(self._diagnoses.get(key, {}).get("fixes")):
                fixes[self._clean.line(fix)] = None
        return list(fixes)[:MOST_ADVICE]

    def last_exception(self) -> Mapping[str, object]:
        """Return the newest unresolved incident of the last attempt that came from an exception, or nothing."""
        raised = [incident for incident in self._unresolved.values() if incident.get("exception")]
        return raised[-1] if raised else {}

    def _attempt_of(self, entry: Entry) -> Attempt:
        if not self.attempts or self.attempts[-1].number != entry.attempt:
            self.attempts.append(Attempt(entry.attempt, entry.time, entry.time, entry.step, entry.step))
            self.attempts_seen += 1
            self.changes = Changes(self._actions, self._clean)
            self._latest, self._diagnoses, self._unresolved, self._unjudged, self._asked = {}, {}, {}, {}, {}
            self._left_to_do, self._made_up = [], MadeUp()
        return self.attempts[-1]

    def _take_incident(self, entry: Entry, attempt: Attempt) -> None:
        key, body, clean = _key_of(entry), entry.body, self._clean
        event = body.get("event")
        incident = self._latest.get(key)
        if event == "opened" or incident is None or incident["closed"] is not None:
            # Also where the opening is missing: torn, or lost with a full disk.
            step = entry.step if event != "closed" else step_of(body.get("opened_step"))
            incident = {
                "name": clean.line(entry.name), "failure": "", "class": "", "severity": "", "step": step, "because": "",
                "closed": None, "closed_step": None, "steps_lost": 0, "seconds_lost": 0.0, "attempt": entry.attempt,
                "exception": None,
            }  # fmt: skip
            self._latest[key] = incident
            self.incidents.append(incident)
            self.incidents_seen += 1
            attempt.incidents += 1
        severity = clean.line(body.get("severity"))
        incident |= {
            "failure": clean.line(body.get("failure", "other")),
            "class": clean.line(body.get("class", "")),
            "severity": severity if severity in _SEVERITIES else str(Severity.ERROR),
            "because": clean.line(body.get("because", "")),
        }
        if body.get("exception"):
            incident["exception"] = clean.line(body["exception"])
        if event == "closed":
            incident |= {"closed": clean.line(body.get("reason", "closed")), "closed_step": entry.step}
        # Moved to the end, so that the newest is last.
        self._unresolved.pop(key, None)
        if incident["closed"] not in RESOLVED:
            self._unresolved[key] = incident

    def _take_outcome(self, entry: Entry, attempt: Attempt) -> None:
        key, body, clean = _key_of(entry), entry.body, self._clean
        plan = _mapping(body.get("plan"))
        done, failed, said = self._what_was_done(entry, plan)
        after = step_of(body.get("step_after"))  # of a run that was there at once; else the signal `returned` tells
        action: dict[str, object] = {
            "failure": clean.line(body.get("failure", "other")),
            "diagnosis": self._sentence(key, plan),
            "actions": done,
            "failed_actions": failed,
            "step": entry.step,
            "outcome": "done" if body.get("succeeded") else "failed",
            "said": clean.line("; ".join(said)),
            "verdict": None,
            "incident": clean.line(key[0]),
            "attempt": entry.attempt,
            "is_undo": bool(body.get("is_undo")),
            "steps_lost": 0,
            "seconds_lost": 0.0,
        }
        self._list(action, attempt)
        if body.get("succeeded") and not body.get("is_undo"):
            self._unjudged[(*key, as_text(body.get("rung")))] = action
        if body.get("returns_to"):
            self._asked[as_text(body["returns_to"])] = action, key
        lost, seconds = self._undone(attempt, entry, entry.step, after)
        self._put_down(attempt, action, key, lost, seconds + seconds_of(body.get("seconds")))
        if after is not None:
            attempt.last_step = after
            regained = max(0, after - entry.step)  # the run ends with a state that a return had undone
            attempt.steps_lost, self.steps_lost = attempt.steps_lost - regained, self.steps_lost - regained

    @property
    def skipped_steps(self) -> int:
        """How many updates plans have left out, those aside that were trained after a return."""
        return len(self._left_out)

    def _take_return(self, entry: Entry, attempt: Attempt) -> None:
        """Take in that the run is back at an earlier state, and what that has cost."""
        body, before = entry.body, step_of(entry.body.get("from_step")) or 0
        lost, seconds = self._undone(attempt, entry, before, entry.step)
        self.changes.returned(entry.step)
        self._left_out = [step for step in self._left_out if step <= entry.step]  # the others are trained anew
        asked = self._asked.pop(as_text(body.get("asked")), None)
        if asked is None:  # nobody has planned it
            self._put_down(attempt, None, None, lost, seconds)
            return
        action, key = self._asked[as_text(body.get("key"))] = asked  # from where the run may return further
        self._put_down(attempt, action, key, lost, seconds)
        why = f" ({as_text(body['because'])})" if body.get("because") else ""
        self._say(action, f"the run has returned from step {before} to step {entry.step}{why}")

    def _take_dropped_return(self, entry: Entry) -> None:
        """Take in that a return does not take place."""
        asked = self._asked.pop(as_text(entry.body.get("asked")), None)
        if asked is not None:
            asked[0]["outcome"] = "failed"
            self._say(asked[0], f"the run has not returned: {as_text(entry.body.get('because'))}")

    def _say(self, action: dict[str, object], more: str) -> None:
        action["said"] = self._clean.line("; ".join(filter(None, (as_text(action["said"]), more))))

    def _undone(self, attempt: Attempt, entry: Entry, before: int, after: int | None) -> tuple[int, float]:
        """Return how many steps a return has undone, and the time they took: they are trained once more."""
        lost = 0 if after is None else max(0, before - after)
        return lost, attempt.times.returned(after, entry.time) if after is not None and lost else 0.0

    def _put_down(
        self, attempt: Attempt, action: dict[str, object] | None, key: Key | None, lost: int, seconds: float
    ) -> None:
        """Count what was lost: for the plan and the incident that led to it, the process, and the run."""
        incident = self._latest.get(key) if key is not None else None
        for blamed in filter(None, (action, incident)):
            blamed["steps_lost"] = (step_of(blamed["steps_lost"]) or 0) + lost
            blamed["seconds_lost"] = round(seconds_of(blamed["seconds_lost"]) + seconds, 3)
        attempt.steps_lost += lost
        attempt.seconds_lost += seconds
        self.steps_lost += lost
        self.seconds_lost += seconds

    def _take_note(self, entry: Entry, attempt: Attempt) -> None:
        match entry.name:
            case notes.REFLEX:
                self._take_reflex(entry, attempt)
            case "record-left-out" | "records-still-left-out" | "row-left-out" | "rows-not-listed":
                said = self._clean.line(entry.body.get("text", ""))
                self.quarantined.append({"step": entry.step, "attempt": entry.attempt, "said": said})
            case "batch-still-halved":
                said = self._clean.line(entry.body.get("text", ""))
                self.changes.take(entry, "halve-batch-size", {}, said, is_recipe=False)
            case notes.SPENT:
                self.spent.take(entry)
            case "tracker-page":
                self.pages[self._clean.line(entry.body.get("tracker", ""))] = self._clean.line(
                    entry.body.get("page", "")
                )
            case "checkpoints-not-written" | "ended-in-trouble" | "last-checkpoint-sick" | "not-pushed":
                self._left_to_do.append(self._clean.line(entry.body.get("text", "")))
            case "killed":
                self._take_kill(entry)
            case "attempt-ended" | "decided":
                self._take_supervisors(entry, attempt)
            case "lines-lost":
                self.lines_lost += step_of(entry.body.get("lines")) or 0

    def _take_kill(self, entry: Entry) -> None:
        """Take in what the next attempt has found out of one that was killed."""
        number, step = step_of(entry.body.get("of")), step_of(entry.body.get("last_step"))
        killed = next((each for each in self.attempts if each.number == number), None)
        if killed is not None and step is not None:
            killed.last_step = max(killed.last_step, step)
            self.killed.append(killed)

    def _take_supervisors(self, entry: Entry, attempt: Attempt) -> None:
        """Take in what a supervisor has seen of an attempt from outside, and that it starts the command again."""
        attempt.last_step = max(attempt.last_step, entry.step)
        failed = next(reversed(self._unresolved.values()), {})
        restart = restart_of(entry, failed, self._actions, self._clean)
        if restart is not None:
            self._list(restart, attempt)

    def _list(self, action: dict[str, object], attempt: Attempt) -> None:
        self.recovery_actions.append(action)
        self.actions_seen += 1
        attempt.recovery_actions += 1

    def _take_reflex(self, entry: Entry, attempt: Attempt) -> None:
        """Take in what was done at once, without a plan."""
        body = entry.body
        seconds = seconds_of(body.get("seconds"))
        self._made_up.take(body)
        self._list(reflex_of(entry, seconds, self._actions, self._clean), attempt)
        attempt.seconds_lost += seconds
        self.seconds_lost += seconds

    def _what_was_done(self, entry: Entry, plan: Mapping[str, object]) -> tuple[list[str], list[str], list[str]]:
        """Return the actions that were done and those that were not, as the seed spells them, and what they said."""
        done: list[str] = []
        failed: list[str] = []
        said: list[str] = []
        described = _list(plan.get("actions"))
        for place, raw in enumerate(_list(entry.body.get("results"))):
            result = _mapping(raw)
            parameters = _mapping(described[place]) if place < len(described) else {}
            name = as_text(result.get("action"))
            spelling = self._clean.line(spelled(name, parameters, self._actions))
            if result.get("text"):
                said.append(as_text(result["text"]))
            if result.get("status") != "done":
                failed.append(spelling)
                continue
            done.append(spelling)
            if name == "skip-step":
                self._left_out.append(entry.step)
            text = self._clean.line(result.get("text", ""))
            if name == "quarantine-records":
                self.quarantined.append({"step": entry.step, "attempt": entry.attempt, "said": text})
            self.changes.take(entry, name, parameters, text, is_recipe=plan.get("effect") == str(Effect.RECIPE))
        return done, failed, said

    def _sentence(self, key: Key, plan: Mapping[str, object]) -> str:
        """Return what was thought to be wrong: the explanation where one convinced, else what was seen."""
        leading = self._diagnoses.get(key, {})
        is_convincing = (number_of(leading.get("weight")) or 0.0) >= CONVINCING
        says = self._clean.line(leading.get("says", "")) if is_convincing else ""
        return says or self._clean.line(plan.get("because", ""))


def _key_of(entry: Entry) -> Key:
    """Return the incident an entry is about; verdicts are named after the judgement, so the body comes first."""
    return as_text(entry.body.get("incident") or entry.name), as_text(entry.body.get("failure"))


def _keep_newest(metrics: dict[str, object], values: Mapping[str, object]) -> None:
    """Keep the newest value of each metric; names without end push out those not seen for longest."""
    for name, value in values.items():
        metrics.pop(name, None)
        metrics[name] = value
    while len(metrics) > MOST_METRICS:
        del metrics[next(iter(metrics))]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()

"""What went wrong in a run, one event each: what was seen, why, what was done about it and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ..core import notes
from ..core.action import Action
from ..core.failure import Severity
from ..core.ledger import Entry
from .changes import spelled
from .clean import Cleaner, as_text, number_of, seconds_of, step_of
from .event import OPEN, SEVERITIES, Deed, Event, Hypothesis

MOST_EVENTS = 500
"""Events that are kept, the newest; older ones are counted."""
_MOST_DEEDS = 40
_MOST_HYPOTHESES = 5
_LOOK_BACK = 8
_SAME_TROUBLE = 5
"""Steps between two occurrences of what is dealt with at once that are one event: a batch that is too large comes back."""


class Timeline:
    """Takes in ledger entries one by one and gathers the events; nothing of it grows without end."""

    def __init__(self, actions: Mapping[str, type[Action]], clean: Cleaner) -> None:
        self._actions, self._clean = actions, clean
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.seen = 0
        self._by_key: dict[tuple[int, str, str], Event] = {}
        self._asked: dict[str, tuple[Event, Deed]] = {}

    @property
    def settled(self) -> int:
        """How many of the events that are kept are over."""
        return sum(event.is_settled for event in self.events)

    def current(self) -> tuple[Event, Deed] | None:
        """Return the newest plan that is not judged yet, with its event."""
        for event in reversed(self.events):
            for deed in reversed(event.deeds):
                if deed.how == "plan" and not deed.verdict and deed.status != "failed" and event.state == OPEN:
                    return event, deed
        return None

    def take(self, entry: Entry) -> None:
        """Take in one entry."""
        match entry.kind, entry.name:
            case "incident", _:
                self._take_incident(entry)
            case "diagnosis", _:
                self._take_diagnosis(entry)
            case "plan", _:
                self._take_plan(entry)
            case "outcome", _:
                self._take_outcome(entry)
            case "verdict", _:
                self._take_verdict(entry)
            case "signal", "returned" | "return-dropped":
                self._take_return(entry)
            case "note", notes.REFLEX:
                self._take_reflex(entry)
            case "note", "decided":
                self._take_restart(entry)

    # -- what was seen -------------------------------------------------------------------------------

    def _take_incident(self, entry: Entry) -> None:
        body, key, name = entry.body, self._key(entry), self._clean.line(entry.name)
        event = self._by_key.get(key)
        what = body.get("event")
        if event is None or (
            what == "opened" and (event.closings.get(name) is not None or event.attempt != entry.attempt)
        ):
            event = self._join(entry, name) or self._begin(entry, name)
            event.seen_at.add(entry.step)
            self._by_key[key] = event
        if name not in event.names:
            event.names.append(name)
        severity = as_text(body.get("severity"))
        if severity in SEVERITIES and SEVERITIES.index(severity) > SEVERITIES.index(event.severity):
            event.severity = severity
        event.fine = event.fine or self._clean.line(body.get("class") or "")
        self._say(event, body.get("because"))
        event.exception = self._clean.line(body.get("exception") or event.exception)
        event.last_step = max(event.last_step, entry.step)
        if what == "closed":
            event.closings[name] = as_text(body.get("reason", "closed"))
            event.closed_step = entry.step
        else:
            event.closings[name] = None

    def _join(self, entry: Entry, name: str) -> Event | None:
        """Return the event that another rule has begun in the same step, or what was done at once in it."""
        failure = as_text(entry.body.get("failure"))
        for event in islice(reversed(self.events), _LOOK_BACK):
            is_near = event.attempt == entry.attempt and event.rank == entry.rank and name not in event.closings
            if is_near and (entry.step in event.seen_at or (event.failure == failure and entry.step - event.step == 1)):
                return event
        return None

    def _begin(self, entry: Entry, name: str) -> Event:
        self.seen += 1
        severity = as_text(entry.body.get("severity"))
        event = Event(
            number=self.seen, step=entry.step, attempt=entry.attempt, rank=entry.rank, time_s=entry.time, names=[name],
            failure=self._clean.line(entry.body.get("failure", "other")), last_step=entry.step,
            severity=severity if severity in SEVERITIES else str(Severity.WARNING),
        )  # fmt: skip
        if len(self.events) == MOST_EVENTS:
            gone = self.events[0]
            self._by_key = {key: known for key, known in self._by_key.items() if known is not gone}
        self.events.append(event)
        return event

    def _say(self, event: Event, because: object) -> None:
        text = self._clean.line(because or "")
        if text and text not in event.because and len(event.because) < _MOST_HYPOTHESES:
            event.because.append(text)

    def _take_diagnosis(self, entry: Entry) -> None:
        event, clean = self._by_key.get(self._key(entry)), self._clean
        if event is None:
            return
        found = [
            Hypothesis(
                clean.line(raw.get("name", "")), clean.line(raw.get("says", "")), _weight(raw.get("weight")),
                tuple(clean.line(each) for each in _list(raw.get("found"))[:_MOST_HYPOTHESES]),
                clean.line(raw.get("confirm", "")),
                tuple(clean.line(each) for each in _list(raw.get("fixes"))[:_MOST_HYPOTHESES]),
            )
            for raw in map(_mapping, _list(entry.body.get("hypotheses"))[:_MOST_HYPOTHESES])
        ]  # fmt: skip
        event.hypotheses = tuple(found) or event.hypotheses

    # -- what was done -------------------------------------------------------------------------------

    def _take_plan(self, entry: Entry) -> None:
        event = self._by_key.get(self._key(entry)) or self._orphan(entry)
        body, clean = entry.body, self._clean
        watch = step_of(body.get("watch"))
        deed = Deed(
            entry.step, "taken back" if body.get("is_undo") else "plan",
            [self._spelled(each) for each in map(_mapping, _list(body.get("actions")))], [], "planned",
            because=clean.line(body.get("because", "")), effect=clean.line(body.get("effect", "")),
            instead_of=tuple(clean.line(each) for each in _list(body.get("instead_of"))[:_MOST_HYPOTHESES]),
            rung=as_text(body.get("rung")), until_step=None if watch is None else entry.step + watch,
        )  # fmt: skip
        _add(event.deeds, deed)

    def _take_outcome(self, entry: Entry) -> None:
        body = entry.body
        event = self._by_key.get(self._key(entry)) or self._orphan(entry)
        rung = as_text(body.get("rung"))
        deed = next((each for each in reversed(event.deeds) if each.rung == rung and each.status == "planned"), None)
        if deed is None:
            deed = Deed(entry.step, "taken back" if body.get("is_undo") else "plan", [], [], "planned", rung=rung)
            _add(event.deeds, deed)
        described = _list(_mapping(body.get("plan")).get("actions"))
        done: list[str] = []
        failed: list[str] = []
        said: list[str] = []
        for place, raw in enumerate(_list(body.get("results"))):
            result = _mapping(raw)
            parameters = dict(_mapping(described[place])) if place < len(described) else {}
            name = self._spelled({**parameters, "name": result.get("action")})
            (done if result.get("status") == "done" else failed).append(name)
            if result.get("text"):
                said.append(as_text(result["text"]))
        deed.actions, deed.failed = done, failed
        deed.said, deed.status = self._clean.line("; ".join(said)), "done" if body.get("succeeded") else "failed"
        deed.seconds += seconds_of(body.get("seconds"))
        after = step_of(body.get("step_after"))
        if after is not None:
            event.steps_lost += max(0, entry.step - after)
        if body.get("returns_to"):
            self._asked[as_text(body["returns_to"])] = event, deed

    def _take_return(self, entry: Entry) -> None:
        asked = self._asked.pop(as_text(entry.body.get("asked")), None)
        if asked is None:
            return
        event, deed = asked
        if entry.name == "return-dropped":
            deed.status, more = "failed", f"the run has not returned: {as_text(entry.body.get('because'))}"
        else:
            before = step_of(entry.body.get("from_step")) or 0
            event.steps_lost += max(0, before - entry.step)
            more = f"returned from step {before} to step {entry.step}"
            self._asked[as_text(entry.body.get("key"))] = asked
        deed.said = self._clean.line("; ".join(filter(None, (deed.said, more))))

    def _take_verdict(self, entry: Entry) -> None:
        event = self._by_key.get(self._key(entry))
        rung = as_text(entry.body.get("rung"))
        for deed in reversed(event.deeds if event else ()):
            if deed.rung == rung and not deed.verdict:
                deed.verdict = self._clean.line(entry.name)
                return

    def _take_reflex(self, entry: Entry) -> None:
        body, clean = entry.body, self._clean
        name, failure = clean.line(body.get("incident", "reflex")), as_text(body.get("failure"))
        helped = body.get("helped") is not False
        event = None
        for known in islice(reversed(self.events), _LOOK_BACK):
            is_same = known.names[0] == name and known.failure == failure and known.rank == entry.rank
            if is_same and known.attempt == entry.attempt and 0 <= entry.step - known.last_step <= _SAME_TROUBLE:
                event = known
                event.times += 1
                break
        if event is None:
            event = self._begin(entry, name)
        event.last_step = max(event.last_step, entry.step)
        event.helped = helped if event.helped is None else event.helped and helped
        self._say(event, body.get("because"))
        actions = [self._spelled({"name": each}) for each in _list(body.get("actions"))]
        deed = Deed(
            entry.step, "at once", actions if helped else [], [] if helped else actions, "done" if helped else "failed",
            said=clean.line(body.get("said", "")), seconds=seconds_of(body.get("seconds")),
        )  # fmt: skip
        _add(event.deeds, deed)

    def _take_restart(self, entry: Entry) -> None:
        """Take in what a supervisor has decided about an attempt that failed."""
        event = next((each for each in reversed(self.events) if "exited" in each.names), None)
        if event is None or event.attempt != entry.attempt:  # an attempt that did not fail is decided about, too
            return
        clean, body = self._clean, entry.body
        again = body.get("decision") == "again"
        changes = [clean.line(each) for each in _list(body.get("changes"))]
        said = "; ".join(changes) or ("started again with the same settings" if again else "not started again")
        why = body.get("because") or body.get("reason") or body.get("why") or ""
        actions = ["restart" if again else "stop"]
        _add(
            event.deeds,
            Deed(entry.step, "restart", actions, [], "done", said=clean.line(said), because=clean.line(why)),
        )

    def _orphan(self, entry: Entry) -> Event:
        """Begin an event for a plan whose incident is missing: torn, or lost with a full disk."""
        name = self._clean.line(entry.body.get("incident") or entry.name)
        event = self._begin(entry, name)
        self._by_key[self._key(entry)] = event
        return event

    def _spelled(self, action: Mapping[str, Any]) -> str:
        return self._clean.line(spelled(as_text(action.get("name")), action, self._actions))

    @staticmethod
    def _key(entry: Entry) -> tuple[int, str, str]:
        name = as_text(entry.body.get("incident") or entry.name)
        return entry.rank, name, as_text(entry.body.get("failure"))


def _add(deeds: list[Deed], deed: Deed) -> None:
    """Keep the first one and the newest."""
    deeds.append(deed)
    if len(deeds) > _MOST_DEEDS:
        del deeds[1]


def _weight(value: object) -> float:
    return min(1.0, seconds_of(number_of(value)))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()

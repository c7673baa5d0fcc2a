"""What a healed run's ledger says, one event a line in plain words, and the demonstration as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.notes import ENDED, REFLEX

if TYPE_CHECKING:
    from ..core.ledger import Entry
    from ..drills.demonstration import Demonstration, RunResult

RUNGS = {"wait": "went on and watched", "alert": "told"}
ENDS = {
    "recovered": "it passed",
    "passed": "it passed",
    "new-normal": "taken as the new normal",
    "worse": "it got worse",
    "rewound": "rolled back over",
}
UNTOLD = frozenset({ENDED, "signals-thinned", "killed"})
"""Notes about the record itself."""
IN_SHORT = {"network-retried": "network-error", "record-left-out": "bad-record"}
"""Notes that a reflex of the same step sums up."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that went wrong."""

    step: int
    name: str
    """As the ledger calls it; several incidents of one step are one event."""
    happened: str
    done: str


def events_of(ledger: Path) -> list[Event]:
    """Return what happened and what was done, in the order of the ledger; nothing where there is no ledger."""
    from ..core.ledger import read_ledger

    if not ledger.exists():
        return []
    entries = read_ledger(ledger).entries
    reflexes = [entry for entry in entries if entry.name == REFLEX]
    summed_up = {(entry.step, entry.body.get("incident")) for entry in reflexes}
    # What was dealt with inside a step is seen by the rules at its end.
    dealt_with = {(entry.step + later, entry.body.get("failure")) for entry in reflexes for later in (0, 1)}
    events: dict[int, Event] = {}
    for entry in entries:
        if entry.kind == "note":
            if entry.name == REFLEX:
                events[entry.seq] = _of_reflex(entry)
            elif entry.name not in UNTOLD and (entry.step, IN_SHORT.get(entry.name)) not in summed_up:
                happened, _, done = str(entry.body.get("text", "")).rpartition("; ")
                events[entry.seq] = Event(entry.step, entry.name, happened or done, done if happened else "told")
        elif _is_opening(entry) and (entry.step, entry.body.get("failure")) not in dealt_with:
            events[entry.seq] = _of_incident(entry, entries)
    return _joined(list(events.values()), {entry.name for entry in entries if entry.kind == "incident"})


def _is_opening(entry: Entry) -> bool:
    return entry.kind == "incident" and entry.body.get("event") == "opened"


def _joined(events: list[Event], rules: set[str]) -> list[Event]:
    """Make one event of what several rules have seen in the same step; what the loss shows is said of it."""
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        if last is None or last.step != event.step or event.name not in rules or last.name not in rules:
            joined.append(event)
        elif event.name.startswith("loss") and not last.name.startswith("loss"):
            joined[-1] = event
    return joined


def _of_reflex(entry: Entry) -> Event:
    """Return one thing that was dealt with in its step."""
    body: Mapping[str, Any] = entry.body
    details = body.get("details") or {}
    name, because, said = str(body.get("incident", "")), str(body.get("because", "")), str(body.get("said", ""))
    match name:
        case "step-not-finite":
            again = "update held back; same batch done again"
            is_plain = not details.get("replaced") and not details.get("left_out")
            return Event(entry.step, name, "the loss or a gradient was NaN", again if is_plain else said)
        case "out-of-memory":
            how = said.rpartition("got through: ")[2]
            how = "same batch done again" if how == "the same again" else f"in {how}"
            return Event(entry.step, name, f"out of memory in the {details.get('phase')} pass", f"memory freed; {how}")
        case "bad-record":
            return Event(entry.step, name, because.partition(" in the ")[0], said)
        case "network-error":
            return Event(entry.step, name, because.partition("; ")[0], said)
    return Event(entry.step, name, because, said)


def _of_incident(opened: Entry, entries: list[Entry]) -> Event:
    """Return what a rule has seen, with what was tried until it was over."""
    later = [e for e in entries if e.seq > opened.seq and opened.name in (e.name, e.body.get("incident"))]
    closed = next((e for e in later if e.kind == "incident" and e.body.get("event") == "closed"), None)
    until = closed.seq if closed is not None else float("inf")
    rungs = list(dict.fromkeys(str(e.body.get("rung")) for e in later if e.kind == "outcome" and e.seq < until))
    done = " and ".join(RUNGS.get(rung, rung) for rung in rungs) or RUNGS["alert"]
    end = ENDS.get(str(closed.body.get("reason")), "") if closed is not None else ""
    happened = str(opened.body.get("because", "")).partition(", ")[0].partition(" for ")[0]
    return Event(opened.step, opened.name, happened, f"{done}; {end}" if end else done)


# --- for programs -----------------------------------------------------------------------------------------------


def as_data(result: Demonstration, events: list[Event]) -> dict[str, object]:
    """Return the demonstration as `heal demo --json` prints it."""
    return {
        "v": 1,
        "healed": result.is_healed,
        "planned_updates": result.script.updates,
        "eval_loss_excess": result.excess,
        "extra_forward_passes": result.extra_forward_passes,
        "faults": [{"name": fault.name(), "summary": fault.summary()} for fault in result.script.faults],
        "events": [{"step": e.step, "name": e.name, "happened": e.happened, "done": e.done} for e in events],
        "runs": [dict(_run(run)) for run in result.runs.values()],
        "files": {"folder": result.folder, "ledger": _there(result.ledger), "postmortem": _there(result.postmortem)},
    }


def _there(path: Path) -> Path | None:
    return path if path.exists() else None


def _run(run: RunResult) -> Iterator[tuple[str, object]]:
    yield "name", run.name
    yield "updates", run.updates
    yield "eval_loss", run.eval_loss
    yield "weights_broken_at", run.broken_at
    yield "ended_by", run.ended_by
    yield "forward_passes", run.forward_passes
    yield "seconds", round(run.seconds, 3)
    yield "losses", [{"step": step, "loss": loss} for step, loss in run.losses.items()]

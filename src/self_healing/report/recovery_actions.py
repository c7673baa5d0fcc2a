"""What was done about a failure without a plan of the healer, as a report lists it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.action import Action
from ..core.ledger import Entry
from .changes import spelled
from .clean import Cleaner, as_text

_AGAIN = "again"
_RESTART = "restart-process"


def reflex_of(entry: Entry, seconds: float, actions: Mapping[str, type[Action]], clean: Cleaner) -> dict[str, object]:
    """Return what was done at once."""
    body = entry.body
    names = _texts(body.get("actions"))
    helped = body.get("helped") is not False  # ledgers of before it was written down do not say
    spellings = [clean.line(spelled(name, {}, actions)) for name in names]
    told = [] if helped else [clean.line(spelled(name, {}, actions)) for name in names if name == "alert"]
    return _action(entry) | {
        "failure": clean.line(body.get("failure", "other")),
        "diagnosis": clean.line(body.get("because", "")),
        "actions": spellings if helped else told,
        "failed_actions": [] if helped else [each for each in spellings if each not in told],
        "outcome": "done" if helped else "failed",
        "said": clean.line(body.get("said", "")),
        "verdict": "recovered" if helped else None,
        "incident": clean.line(body.get("incident", "")),
        "seconds_lost": round(seconds, 3),
    }


def restart_of(
    entry: Entry, incident: Mapping[str, object], actions: Mapping[str, type[Action]], clean: Cleaner
) -> dict[str, object] | None:
    """Return that a supervisor starts the command again, and what it has changed; None where it decided otherwise."""
    if entry.body.get("decision") != _AGAIN:
        return None
    changes = _texts(entry.body.get("changes"))
    return _action(entry) | {
        "failure": incident.get("failure", "other"),
        "diagnosis": incident.get("because", ""),
        "actions": [clean.line(spelled(_RESTART, {}, actions))],
        "said": clean.line("; ".join(changes) or "started again with the same settings"),
        "incident": incident.get("name", ""),
    }


def _action(entry: Entry) -> dict[str, object]:
    """Return the keys of every action, in their order."""
    return {
        "failure": "other", "diagnosis": "", "actions": [], "failed_actions": [], "step": entry.step, "outcome": "done",
        "said": "", "verdict": None, "incident": "", "attempt": entry.attempt, "is_undo": False, "steps_lost": 0,
        "seconds_lost": 0.0,
    }  # fmt: skip


def _texts(value: object) -> list[str]:
    return [as_text(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else []

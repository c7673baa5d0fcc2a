"""What a run tells people while it runs: one announcement for every decision, and one for a storm of them.

Entries of the ledger go in, announcements come out. There is no clock here: whoever asks says what time it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from ..core.diagnosis import CONVINCING
from ..core.failure import Effect, Severity
from ..core.ledger import Entry
from ..core.notes import ENDED, REFLEX
from .clean import as_text, number_of

GATHER_S = 1.0
"""How long an announcement waits for others like it: a storm is one alert with a count."""
PAUSE_S = 60.0
"""How long the next ones like it are gathered once one was told; twice as long each time it goes on."""
LONGEST_PAUSE_S = 3600.0
MOST_KINDS = 256
"""Kinds of announcements that are told apart; beyond that the one not heard of for longest is forgotten."""
LONGEST_TITLE = 63
"""As much as Weights & Biases takes."""
MOST_REFERENCES = 4
MOST_HYPOTHESES = 3


class Level(StrEnum):
    """How much an announcement wants to be read."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


_ORDER = (Level.INFO, Level.WARN, Level.ERROR)
_OF_SEVERITY = {
    str(Severity.INFO): Level.INFO,
    str(Severity.WARNING): Level.WARN,
    str(Severity.ERROR): Level.ERROR,
}
_OF_NOTE = {
    "best-checkpoint-gone": Level.WARN,
    "checkpoints-not-written": Level.ERROR,
    "device-lost": Level.ERROR,
    "emergency": Level.WARN,
    "ended-in-trouble": Level.WARN,
    "healer-crashed": Level.ERROR,
    "hook-crashed": Level.WARN,
    "hook-misused": Level.WARN,
    "hook-replaced": Level.INFO,
    "hook-vetoed": Level.INFO,
    "interrupted": Level.WARN,
    "killed": Level.ERROR,
    "last-checkpoint-sick": Level.WARN,
    "memory-gave-up": Level.ERROR,
    "memory-grown-back": Level.INFO,
    "memory-shrunk": Level.WARN,
    "nan-examined": Level.INFO,
    "neighbours-averaged": Level.ERROR,
    "no-snapshots": Level.WARN,
    "push-given-up": Level.ERROR,
    "resuming": Level.INFO,
    "reward-not-finite": Level.WARN,
    "reward-unscored": Level.WARN,
    "secured": Level.WARN,
    "state-damaged": Level.WARN,
    "state-rejected": Level.WARN,
    "state-unexplained": Level.WARN,
    "step-left-out": Level.WARN,
    "tracker-back": Level.INFO,
    "tracker-down": Level.WARN,
    "tracker-slow": Level.WARN,
}
"""The remarks in a ledger that are decisions, or that a person wants to hear of."""
_OF_VERDICT = {"recovered": Level.INFO, "relapsed": Level.WARN, "worse": Level.WARN}
_ENDED_WELL = frozenset({"completed", "pruned"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One thing to tell, as often as it has happened since it was last told."""

    level: Level
    title: str
    text: str
    step: int
    """The newest step it is about."""
    first_step: int
    count: int = 1
    incident: str = ""
    references: tuple[str, ...] = ()
    """Literature behind the diagnosis."""
    is_logged: bool = False
    """The log has it already."""

    def in_words(self) -> str:
        """Return the text with what a reader needs beside it."""
        lines = [self.text]
        if self.count > 1:
            lines.append(f"{self.count} times, steps {self.first_step} to {self.step}")
        if self.references:
            lines.append("References: " + "; ".join(self.references))
        return "\n".join(lines)


Kind = tuple[str, ...]
"""What tells announcements apart that are not to be counted together."""


@dataclass(slots=True)
class _Told:
    """How one kind of announcement stands."""

    waiting: Announcement | None = None
    due_s: float = 0.0
    pause_s: float = 0.0
    """How long the next are gathered; none was told yet where it is zero."""


class Announcer:
    """Turns entries into announcements, and holds back what was told a moment ago."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, _Told] = OrderedDict()
        self._diagnoses: OrderedDict[str, Sequence[Mapping[str, Any]]] = OrderedDict()
        self.forgotten = 0
        """Announcements that were never told because too many kinds of them came at once."""

    def take(self, entry: Entry, now_s: float) -> None:
        """Take in an entry; `due` says when there is something to tell."""
        if entry.kind == "diagnosis":
            for about in (entry.name, _failure_of(entry)):  # what was done at once knows the class only
                self._diagnoses[about] = _list(entry.body.get("hypotheses"))
                self._diagnoses.move_to_end(about)
            while len(self._diagnoses) > MOST_KINDS:
                self._diagnoses.popitem(last=False)
            return
        found = self._announcement(entry)
        if found is None:
            return
        kind, announcement = found
        for earlier in _made_obsolete(kind):  # what was done says what was seen, too
            self._withdraw(earlier)
        self._add(kind, announcement, now_s)

    def due(self, now_s: float) -> list[Announcement]:
        """Return what is to be told now, the oldest first."""
        return self._told(now_s, [told for told in self._kinds.values() if told.waiting and told.due_s <= now_s])

    def rest(self, now_s: float) -> list[Announcement]:
        """Return all that has not been told yet: there will be no later."""
        return self._told(now_s, [told for told in self._kinds.values() if told.waiting])

    def next_due_s(self) -> float | None:
        """Return when `due` has something to tell; None where nothing waits."""
        return min((told.due_s for told in self._kinds.values() if told.waiting), default=None)

    # -- holding back --------------------------------------------------------------------------------

    def _add(self, kind: Kind, announcement: Announcement, now_s: float) -> None:
        told = self._kinds.setdefault(kind, _Told())
        self._kinds.move_to_end(kind)
        if told.waiting is not None:
            told.waiting = _both(told.waiting, announcement)
            return
        told.waiting = announcement
        if now_s >= told.due_s + told.pause_s:  # the first, or quiet for so long that it is news again
            told.pause_s, told.due_s = 0.0, now_s + GATHER_S
        else:
            told.due_s += told.pause_s
        while len(self._kinds) > MOST_KINDS:
            _, dropped = self._kinds.popitem(last=False)
            self.forgotten += dropped.waiting.count if dropped.waiting is not None else 0

    def _withdraw(self, kind: Kind) -> None:
        for each, told in self._kinds.items():
            if each[: len(kind)] == kind:
                told.waiting = None

    @staticmethod
    def _told(now_s: float, kinds: list[_Told]) -> list[Announcement]:
        announcements = []
        for told in kinds:
            assert told.waiting is not None
            announcements.append(told.waiting)
            told.waiting, told.due_s = None, now_s
            told.pause_s = min(max(PAUSE_S, 2.0 * told.pause_s), LONGEST_PAUSE_S)
        return sorted(announcements, key=lambda announcement: announcement.step)

    # -- what an entry says --------------------------------------------------------------------------

    def _announcement(self, entry: Entry) -> tuple[Kind, Announcement] | None:
        match entry.kind:
            case "incident":
                return self._of_incident(entry)
            case "plan":
                return self._of_plan(entry)
            case "outcome":
                return self._of_outcome(entry)
            case "verdict":
                return self._of_verdict(entry)
            case "note" if entry.name == REFLEX:
                return self._of_reflex(entry)
            case "note" if entry.name == ENDED:
                return _of_end(entry)
            case "note" if entry.name in _OF_NOTE:
                text = as_text(entry.body.get("text", ""))
                made = _made(entry, _OF_NOTE[entry.name], entry.name, text, is_logged=True)
                return ("note", entry.name), made
        return None

    def _of_incident(self, entry: Entry) -> tuple[Kind, Announcement] | None:
        body = entry.body
        if body.get("event") == "closed":
            return None
        level = _OF_SEVERITY.get(as_text(body.get("severity")), Level.WARN)
        lines = [f"Seen at step {entry.step}: {as_text(body.get('because', ''))}", *self._explained(entry.name)]
        made = _made(entry, level, entry.name, "\n".join(lines), references=self._references(entry.name))
        return ("incident", _failure_of(entry), entry.name), made

    def _of_plan(self, entry: Entry) -> tuple[Kind, Announcement]:
        """Tell of a plan that nobody carries out; where it is carried out, its outcome takes its place."""
        body, incident = entry.body, as_text(entry.body.get("incident", entry.name))
        names = ", ".join(_names(body.get("actions"))) or "nothing"
        lines = [
            f"Seen at step {entry.step}: {as_text(body.get('because', ''))}",
            f"Advised: {names}",
            *self._explained(incident),
        ]
        level = _OF_SEVERITY.get(as_text(body.get("severity")), Level.WARN)
        made = _made(
            entry,
            level,
            f"{incident}: {names}",
            "\n".join(lines),
            incident=incident,
            references=self._references(incident),
        )
        return ("plan", _failure_of(entry), incident, names), made

    def _of_outcome(self, entry: Entry) -> tuple[Kind, Announcement]:
        body = entry.body
        plan = body.get("plan")
        plan = plan if isinstance(plan, Mapping) else {}
        incident = as_text(body.get("incident", entry.name))
        said, names = [], []
        for result in _list(body.get("results")):
            name, status, text = (as_text(result.get(key, "")) for key in ("action", "status", "text"))
            names.append(name)
            said.append(f"{name}: {text or status}" if status == "done" else f"{name} {status}: {text}")
        succeeded = bool(body.get("succeeded"))
        level = _OF_SEVERITY.get(as_text(plan.get("severity")), Level.WARN)
        if "stop-run" in names:
            level = Level.ERROR
        elif not succeeded:
            level = max(level, Level.WARN, key=_ORDER.index)
        done = "taken back" if body.get("is_undo") else "done" if succeeded else "failed"
        because = as_text(plan.get("because", ""))
        told = [
            as_text(action.get("text", "")) for action in _list(plan.get("actions")) if action.get("name") == "alert"
        ]
        lines = [
            f"Seen at step {entry.step}: {because}",
            *(text for text in told if text not in ("", because)),  # what a rule has to say of its own
            f"{done.capitalize()}: {'; '.join(said) or 'nothing'}",
            *self._explained(incident),
        ]
        title = f"{incident}: {', '.join(names)}{'' if succeeded else ' (failed)'}"
        made = _made(entry, level, title, "\n".join(lines), incident=incident, references=self._references(incident))
        return ("outcome", _failure_of(entry), incident, as_text(body.get("rung", "")), done), made

    @staticmethod
    def _of_verdict(entry: Entry) -> tuple[Kind, Announcement] | None:
        body, incident = entry.body, as_text(entry.body.get("incident", ""))
        if body.get("effect") == str(Effect.NOTHING):  # there was nothing that could have helped
            return None
        text = (
            f"Step {entry.step}: {as_text(body.get('rung', ''))} has {entry.name}: {as_text(body.get('because', ''))}"
        )
        if entry.name == "worse":
            text = (
                f"Step {entry.step}: {as_text(body.get('rung', ''))} made it worse: {as_text(body.get('because', ''))}"
            )
        made = _made(
            entry, _OF_VERDICT.get(entry.name, Level.INFO), f"{incident}: {entry.name}", text, incident=incident
        )
        return ("verdict", incident, entry.name), made

    def _of_reflex(self, entry: Entry) -> tuple[Kind, Announcement]:
        """Tell of what was done at once, inside a step."""
        body, incident = entry.body, as_text(entry.body.get("incident", "reflex"))
        names = ", ".join(as_text(name) for name in _sequence(body.get("actions")))
        done = "Failed" if body.get("helped") is False else "Done"
        text = f"Seen at step {entry.step}: {as_text(body.get('because', ''))}\n{done}: {as_text(body.get('said', ''))}"
        level = Level.INFO if incident == "gradient-outlier" else Level.WARN  # one that is clipped does no harm
        about = self._references(incident) or self._references(_failure_of(entry))
        made = _made(entry, level, f"{incident}: {names}", text, incident=incident, references=about)
        return ("reflex", incident, names, done), made

    def _explained(self, incident: str) -> Iterator[str]:
        """Yield a sentence for each of the likeliest explanations."""
        for hypothesis in self._diagnoses.get(incident, ())[:MOST_HYPOTHESES]:
            weight = number_of(hypothesis.get("weight")) or 0.0
            word = "Likely" if weight >= CONVINCING else "Possible"
            seen = next((as_text(fact) for fact in _sequence(hypothesis.get("found"))), "")
            shown = (
                f" ({seen.rstrip('.')})" if seen and weight >= CONVINCING else ""
            )  # what makes it more than possible
            yield f"{word}: {as_text(hypothesis.get('says', ''))}{shown}"

    def _references(self, incident: str) -> tuple[str, ...]:
        """Return the literature behind the likeliest explanations."""
        found: dict[str, None] = {}
        for hypothesis in self._diagnoses.get(incident, ())[:MOST_HYPOTHESES]:
            for reference in _sequence(hypothesis.get("references")):
                found[" ".join(as_text(reference).split())] = None
        return tuple(found)[:MOST_REFERENCES]


def _made(
    entry: Entry,
    level: Level,
    title: str,
    text: str,
    *,
    incident: str | None = None,
    references: tuple[str, ...] = (),
    is_logged: bool = False,
) -> Announcement:
    about = entry.name if incident is None else incident
    return Announcement(
        level=level, title=_short(title), text=text, step=entry.step, first_step=entry.step, incident=about,
        references=references, is_logged=is_logged,
    )  # fmt: skip


def _of_end(entry: Entry) -> tuple[Kind, Announcement]:
    reason, raised = as_text(entry.body.get("exit_reason", "")), entry.body.get("exception")
    level = Level.INFO if reason in _ENDED_WELL else Level.WARN if reason.startswith("sig") else Level.ERROR
    text = f"The run has ended at step {entry.step}: {reason}" + (f" ({as_text(raised)})" if raised else "")
    return ("note", ENDED), _made(entry, level, f"run ended: {reason}", text)


def _failure_of(entry: Entry) -> str:
    return as_text(entry.body.get("failure", ""))


def _both(earlier: Announcement, later: Announcement) -> Announcement:
    """Return one announcement for two: the newest words, the higher level, and how many there were."""
    return replace(
        later,
        level=max(earlier.level, later.level, key=_ORDER.index),
        first_step=min(earlier.first_step, later.first_step),
        step=max(earlier.step, later.step),
        count=earlier.count + later.count,
        references=later.references or earlier.references,
    )


def _made_obsolete(kind: Kind) -> Iterator[Kind]:
    """Yield the kinds whose waiting announcement says less than one of this kind."""
    if kind[0] in ("plan", "outcome"):  # of one class of failure a single incident is answered, for all of them
        yield "incident", kind[1]
    if kind[0] == "outcome":
        yield "plan", kind[1], kind[2]


def _short(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= LONGEST_TITLE else f"{line[: LONGEST_TITLE - 3]}..."


def _names(actions: object) -> list[str]:
    return [as_text(action.get("name", "")) for action in _list(actions)]


def _list(value: object) -> list[Mapping[str, Any]]:
    return [item for item in _sequence(value) if isinstance(item, Mapping)]


def _sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()

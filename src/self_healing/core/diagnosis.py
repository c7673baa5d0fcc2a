"""Rank what would explain an incident into a diagnosis: a menu with evidence, not a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from .action import Ladder
from .cause import Cause, Evidence, Pattern
from .failure import FailureType
from .history import History
from .incident import Incident

CONVINCING = 0.5
"""The weight from which a hypothesis may choose the ladder and the class of failure."""
SPECIFIC = 0.58
"""The weight from which a pattern knows the message itself, and not only that something was raised or lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One possible explanation of an incident."""

    name: str
    says: str
    weight: float
    found: tuple[str, ...] = ()
    confirm: str = ""
    fixes: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    failure: FailureType | None = None
    fine: str | None = None
    remedy: Ladder = ()
    is_echo: bool = False
    """True where it is usually a consequence of something else."""
    is_certain: bool = False
    """True where only its own remedies can help."""
    at: int = 0
    """Where in the incident's text it was found: the last character of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The hypotheses for one incident, most likely first."""

    incident: Incident
    hypotheses: tuple[Hypothesis, ...] = ()

    @property
    def leading(self) -> Hypothesis | None:
        """Return the first hypothesis if its evidence is convincing."""
        first = self.hypotheses[0] if self.hypotheses else None
        return first if first is not None and first.weight >= CONVINCING else None

    @property
    def failure(self) -> FailureType:
        """Return the class of failure the budgets count the incident under."""
        return self.incident.failure

    def to_json(self) -> dict[str, object]:
        """Return the diagnosis as its ledger line holds it."""
        return {
            "incident": self.incident.name,
            "failure": self.failure.value,
            "hypotheses": [
                {
                    "name": h.name, "says": h.says, "weight": h.weight, "found": list(h.found),
                    "confirm": h.confirm, "fixes": list(h.fixes), "references": list(h.references),
                }
                for h in self.hypotheses
            ],
        }  # fmt: skip


def classify(incident: Incident, patterns: Iterable[Pattern]) -> Incident:
    """Give an incident that carries text the class of failure its text gives away."""
    leading = Diagnosis(incident=incident, hypotheses=ranked(_matching(incident, patterns))).leading
    if leading is None or leading.failure is None:
        return incident
    return replace(incident, failure=leading.failure, fine=leading.fine or incident.fine)


Crash = Callable[[str, Exception], None]


def diagnose(
    incident: Incident, causes: Iterable[Cause], patterns: Iterable[Pattern], past: History, on_crash: Crash
) -> Diagnosis:
    """Rank what speaks for each cause and pattern; a crashing one is reported to `on_crash` and left out."""
    found = list(_matching(incident, patterns))
    for cause in causes:
        if incident.name not in cause.explains:
            continue
        try:
            evidence = cause.evidence(incident, past)
            if evidence is not None:
                found.append(_from_cause(cause, evidence, cause.ladder(incident)))
        except Exception as error:  # noqa: BLE001  # the fence: recorded by on_crash
            on_crash(cause.name(), error)
    return Diagnosis(incident=incident, hypotheses=ranked(found))


def _matching(incident: Incident, patterns: Iterable[Pattern]) -> Iterable[Hypothesis]:
    if not (incident.exception or incident.text):
        return
    for pattern in patterns:
        evidence = pattern.evidence(incident.exception, incident.bases, incident.text)
        if evidence is not None:
            yield _from_pattern(pattern, evidence)


def ranked(found: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Put the most likely first; a consequence comes after every cause that is known, however plainly it is said."""
    return tuple(sorted(found, key=lambda h: (h.is_echo or h.weight < SPECIFIC, -h.weight, h.name)))


def _from_cause(cause: Cause, evidence: Evidence, remedy: Ladder) -> Hypothesis:
    return Hypothesis(
        name=cause.name(), says=cause.summary(), weight=evidence.weight, found=evidence.found, confirm=cause.confirm,
        fixes=cause.fixes, references=cause.references, remedy=remedy, is_certain=cause.is_certain,
    )  # fmt: skip


def _from_pattern(pattern: Pattern, evidence: Evidence) -> Hypothesis:
    return Hypothesis(
        name=pattern.name, says=pattern.says, weight=evidence.weight, found=evidence.found, confirm=pattern.confirm,
        fixes=pattern.fixes, references=(pattern.source,) if pattern.source else (), failure=pattern.failure,
        fine=pattern.fine, remedy=pattern.remedy, is_echo=pattern.is_echo, at=evidence.at,
    )  # fmt: skip

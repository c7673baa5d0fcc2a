"""What a replay finds, and the book in which the core writes it down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..core.failure import FailureType, Severity
from ..core.ledger import Entry, UnwrittenBook
from ..core.plan import Plan
from ..readers import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An incident of a replay as it opened; one that gets worse is listed again."""

    run: int
    name: str
    failure: FailureType
    fine: str
    severity: Severity
    step: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan of a replay."""

    run: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorDecision:
    """What follows an attempt of a supervised command."""

    attempt: int
    cause: str
    """The class of what it failed of; empty where it has succeeded."""
    decision: str
    """`done`, `again` or `stop`."""
    wish: str
    """What is to be changed for another attempt."""
    wait_s: float
    """How long to wait before it."""
    changes: tuple[str, ...]
    """What was changed then for the next attempt, in words."""
    because: str


@dataclass(slots=True, kw_only=True)
class ReplayResult:
    """What the core makes of a recording."""

    path: Path
    format: Format
    incidents: list[Finding] = field(default_factory=list)
    plans: list[Proposal] = field(default_factory=list)
    decisions: list[SupervisorDecision] = field(default_factory=list)
    """What `heal run` decided, in the ledger of a supervisor."""
    observations: int = 0
    """Signals that carry metrics."""
    runs: int = 0
    """Runs told apart in a table, or starts of the run in a ledger, or attempts of a supervisor."""
    exact: bool | None = None
    """Whether the plans and decisions equal the recorded ones; None where none were recorded, or another configuration was asked for."""
    differences: list[str] = field(default_factory=list)
    """Where recorded and replayed plans differ, one sentence each."""
    approximate: list[str] = field(default_factory=list)
    """Why the replay cannot be held to the recorded plans, one sentence each; empty where it can."""
    torn: int = 0
    """Lines that could not be read."""

    @property
    def healthy(self) -> bool:
        """Say whether nothing worse than information was found."""
        return all(finding.severity is Severity.INFO for finding in self.incidents)


class Transcript(UnwrittenBook):
    """The book of a replay: keeps incidents and counts the rest, so that it does not grow with the recording."""

    def __init__(self, result: ReplayResult, run: int) -> None:
        super().__init__(attempt=run + 1)
        self.next_trouble: str | None = None
        self._result = result
        self._run = run

    def take(self, entry: Entry) -> None:
        """Take note of an incident that begins or gets worse."""
        if entry.kind == "incident" and entry.body["event"] in ("opened", "worsened"):
            self._note(entry)

    def trouble(self) -> str | None:
        """Return what kept the recorded run from writing its ledger at this moment."""
        trouble, self.next_trouble = self.next_trouble, None
        return trouble

    def planned(self, plan: Plan) -> None:
        """Take note of a plan."""
        self._result.plans.append(Proposal(run=self._run, plan=plan))

    def _note(self, entry: Entry) -> None:
        body = entry.body
        finding = Finding(
            run=self._run,
            name=entry.name,
            failure=FailureType(str(body["failure"])),
            fine=str(body["class"]),
            severity=Severity[str(body["severity"]).upper()],
            step=entry.step,
            because=str(body["because"]),
        )
        self._result.incidents.append(finding)

"""One thing that went wrong in a run, as a report tells it: what was seen, why, what was done, what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.failure import Severity

_OF_ALL_KINDS = frozenset({"crashed", "exited"})
"""Rules whose name does not say what went wrong."""
_WATCHING = frozenset({"wait", "alert"})
RESTARTED = "another attempt is made"
SEVERITIES = tuple(str(severity) for severity in Severity)
OPEN, HEALED, PASSED, RETRIED, NEW_NORMAL, WORSE, TOLD = (
    "open", "healed", "passed", "started again", "new normal", "worse", "told",
)  # fmt: skip
SETTLED = frozenset({HEALED, PASSED, RETRIED, TOLD})


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One explanation, as the diagnosis ranked it."""

    name: str
    says: str
    weight: float
    found: tuple[str, ...]
    confirm: str
    fixes: tuple[str, ...]


@dataclass(slots=True)
class Deed:
    """Something that was done about an event, or planned."""

    step: int
    how: str
    """`at once` (inside the step), `plan`, `taken back`, `restart`."""
    actions: list[str]
    failed: list[str]
    status: str
    """`planned`, `done`, `failed`."""
    because: str = ""
    said: str = ""
    effect: str = ""
    instead_of: tuple[str, ...] = ()
    verdict: str = ""
    seconds: float = 0.0
    rung: str = ""
    until_step: int | None = None
    """To when the run is watched before the plan is judged."""


@dataclass(slots=True)
class Event:
    """One thing that went wrong; several rules may have seen it."""

    number: int
    step: int
    attempt: int
    rank: int
    time_s: float
    names: list[str]
    failure: str
    severity: str
    last_step: int
    fine: str = ""
    """The class of failure, as exactly as it is known."""
    times: int = 1
    because: list[str] = field(default_factory=list)
    hypotheses: tuple[Hypothesis, ...] = ()
    deeds: list[Deed] = field(default_factory=list)
    exception: str = ""
    steps_lost: int = 0
    closed_step: int | None = None
    helped: bool | None = None
    """Whether what was done at once was enough; None where nothing was."""
    seen_at: set[int] = field(default_factory=set)
    """The steps in which rules have seen it."""
    closings: dict[str, str | None] = field(default_factory=dict)
    """How each rule's incident was closed."""

    @property
    def title(self) -> str:
        """The name for people: that of the rule that says most."""
        first = next((name for name in self.names if name.startswith("loss")), self.names[0])
        chosen = self.names[0] if self.helped is not None else first
        known = f" ({self.fine})" if chosen in _OF_ALL_KINDS and self.fine else ""
        return f"{chosen.capitalize()}{known}".replace("-", " ").replace("_", " ")

    @property
    def seconds_lost(self) -> float:
        """What carrying out its plans has cost."""
        return sum(deed.seconds for deed in self.deeds)

    @property
    def state(self) -> str:
        """What came of it."""
        reasons = set(self.closings.values())
        for reason, word in (("worse", WORSE), ("new-normal", NEW_NORMAL)):
            if reason in reasons:
                return word
        if None in reasons and not (self.helped and self.severity != SEVERITIES[-1]):
            return TOLD if self.severity == SEVERITIES[0] else OPEN
        if RESTARTED in reasons:
            return RETRIED
        if self.helped is False and not reasons:
            return OPEN
        acted = self.helped or any(
            deed.status == "done" and not set(deed.actions) <= _WATCHING for deed in self.deeds if deed.how != "at once"
        )
        return HEALED if acted else PASSED

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to do about it."""
        return self.state in SETTLED

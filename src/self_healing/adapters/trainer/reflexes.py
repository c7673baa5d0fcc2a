"""What a run had to do at once, before anyone could be asked: recorded beside the plans that were decided."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from ...core.failure import FailureType

NOTE = "reflex"
"""The name of such notes in the ledger."""

AT_ONCE = frozenset(
    {
        "clear-cache",
        "enable-gradient-checkpointing",
        "quarantine-records",
        "retry-later",
        "skip-batches",
        "skip-step",
        "split-micro-batch",
    }
)
"""The actions that a trainer's run takes by itself, inside the step; a plan need not ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflex:
    """One trouble that was dealt with inside the step it came up in."""

    failure: FailureType
    incident: str
    """What it was, as a rule would be called."""
    because: str
    """One sentence: what was seen."""
    actions: tuple[str, ...]
    """What was done, by the names of the catalogue."""
    said: str
    """What came of it."""
    step: int
    """Global step before the update it belongs to."""
    seconds: float = 0.0
    details: dict[str, object] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return what the ledger holds of it."""
        return {**asdict(self), "failure": self.failure.value, "actions": list(self.actions)}

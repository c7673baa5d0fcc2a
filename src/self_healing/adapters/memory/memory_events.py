"""What is reported when memory runs out and when something is done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .memory_errors import Phase

EventKind = Literal["out-of-memory", "recovered", "gave-up", "shrunk", "grown-back"]


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One thing that happened, in the order in which it happened."""

    kind: EventKind
    """`out-of-memory` is told while the failed attempt still holds its memory, so that it can be looked at."""
    step: int
    """Global step before the update."""
    micro_batch: int
    """Place of the micro-batch in its step, from 0."""
    phase: Phase
    tactic: str
    """What was being tried, or what worked."""
    extra_forwards: float
    """Forward passes over this micro-batch so far beyond the one a step without trouble needs."""
    text: str
    """One sentence for people."""

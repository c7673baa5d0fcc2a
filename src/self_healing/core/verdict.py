"""Decide after the watch window whether a plan helped: recovered, relapsed or worse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from .plan import Plan


class VerdictKind(StrEnum):
    """What became of a plan."""

    RECOVERED = "recovered"
    """The incident did not come back, and nothing got worse."""
    RELAPSED = "relapsed"
    """The same class of incident came back within the watch window: that rung failed."""
    WORSE = "worse"
    """The incident stayed away, but the watched metric or the next evaluation got worse: take the change back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A judgement on one plan."""

    kind: VerdictKind
    plan: Plan
    because: str

    def to_json(self) -> dict[str, object]:
        """Return the verdict as its ledger line holds it."""
        plan = self.plan
        return {
            "incident": plan.incident, "failure": plan.failure.value, "rung": plan.rung,
            "effect": str(plan.effect), "because": self.because,
        }  # fmt: skip


RELATIVE_TOLERANCE = 0.01
"""Less than this fraction of the reference never counts as worse."""

SPREADS = 3.0
"""Nor does less than this many robust standard deviations of the reference."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a metric is compared with: its level and spread before the change."""

    level: float
    spread: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Reference | None:
        """Summarise values by median and median absolute deviation."""
        if not values:
            return None
        level = median(values)
        return cls(level, 1.4826 * median(abs(value - level) for value in values))

    def is_worse(self, values: Sequence[float]) -> bool:
        """Say whether values are clearly above the reference (metrics here are better when lower)."""
        if not values:
            return False
        margin = max(SPREADS * self.spread, RELATIVE_TOLERANCE * abs(self.level))
        return median(values) > self.level + margin

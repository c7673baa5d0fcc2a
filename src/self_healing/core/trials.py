"""Recipe changes that have passed their watch window: the next evaluation has the last word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .incident import Incident
from .plan import Plan
from .signal import Metrics
from .verdict import Reference, Verdict, VerdictKind

EVALUATION = "eval_loss"


@dataclass(frozen=True, slots=True)
class Trial:
    """A recipe change that has passed its watch window and awaits the next evaluation."""

    plan: Plan
    eval_before: float

    def judged(self, signal: Metrics) -> Verdict:
        """Return what an evaluation says of it."""
        value = signal.values[EVALUATION]
        worse = not signal.is_finite(EVALUATION) or Reference(self.eval_before, 0.0).is_worse((value,))
        because = f"eval_loss is {value:.4g} after the change, {self.eval_before:.4g} before"
        return Verdict(kind=VerdictKind.WORSE if worse else VerdictKind.RECOVERED, plan=self.plan, because=because)


def relapsed(trials: Iterable[Trial], incident: Incident) -> list[Trial]:
    """Return the trials that an incident speaks against: of its class, and not worse than it."""
    of_its_class = [trial for trial in trials if trial.plan.failure is incident.failure]
    return [trial for trial in of_its_class if incident.severity >= trial.plan.severity]

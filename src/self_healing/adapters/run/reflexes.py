"""What a run had to do at once, before anyone could be asked: recorded beside the plans that were decided."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ...core.failure import FailureType

if TYPE_CHECKING:
    from ..step.make_up import AppliedStep
    from ..step.step_reading import StepReading

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

WITH_OTHER_DATA = "with other data"
"""How steps are called that were trained on other data than their own."""


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
    helped: bool = True
    """Whether the trouble was dealt with; else the run has only gone on in spite of it."""
    details: dict[str, object] = field(default_factory=dict)

    def body(self) -> dict[str, object]:
        """Return what the ledger holds of it."""
        return {**asdict(self), "failure": self.failure.value, "actions": list(self.actions)}


def clipping_of(reading: StepReading, max_grad_norm: float | None) -> Reflex | None:
    """Return what there is to record of an outlier that was brought down further than the user's limit would have."""
    left, limit = reading.norm * reading.coefficient, max_grad_norm or math.inf
    if not (reading.is_outlier and reading.is_applied and reading.coefficient < 1.0 and left < limit * 0.999):
        return None
    told = f"the gradient norm of step {reading.step} was {reading.norm:.4g}, {reading.z:.1f} scales above its level"
    return Reflex(
        failure=FailureType.GRADIENT_EXPLOSION,
        incident="gradient-outlier",
        because=told,
        actions=("tighten-clipping",),
        said=f"this one gradient was clipped to {left:.4g}",
        step=reading.step - 1,
    )


def made_up(
    unsound: Sequence[int], applied: Sequence[AppliedStep], counts: Mapping[str, int], *, step: int, seconds: float
) -> Reflex:
    """Tell what became of updates that were held back, by the number of steps of each kind."""
    first = unsound[0] if unsound else step
    told = [f"{what}: {count}" for what, count in counts.items() if count]
    return Reflex(
        failure=FailureType.NAN_LOSS,
        incident="step-not-finite",
        because=f"a loss or a gradient of step {first} was not finite, so the update was held back on the device",
        actions=("skip-step", "skip-batches") if counts[WITH_OTHER_DATA] else ("skip-step",),
        said="steps " + ", ".join(told or [f"held back: {len(unsound)}"]),
        step=first - 1,
        seconds=seconds,
        details={"unsound": list(unsound), "made_up": [each.step for each in applied]},
    )

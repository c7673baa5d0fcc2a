"""What a device says of one optimizer step, once it has come to its end."""

from __future__ import annotations

from dataclasses import dataclass

from .update_numbers import UpdateNumbers


@dataclass(frozen=True, slots=True)
class StepReading:
    """What the device said of one optimizer step."""

    step: int
    """Global step after the update."""
    loss: float
    is_sound: bool
    """Loss and gradients were finite."""
    is_applied: bool
    """The update was applied at once; False where it was skipped or held back behind a skipped one."""
    norm: float
    coefficient: float
    z: float
    is_outlier: bool
    rate: float
    """That of the first group of parameters."""
    numbers: UpdateNumbers
    """Those of all groups."""
    is_routine_overflow: bool
    """A GradScaler has skipped the step, and its scale is not yet so small that the gradients are to blame."""
    has_loss: bool = True
    """False where nobody has told us the loss."""

"""The fault `poisoned-batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, with_gradient_times, with_loss_times


@dataclass(kw_only=True)
class PoisonedBatch(Fault):
    """One batch has a loss thousands of times too large, and finite."""

    factor: float = 3000.0
    """What its loss is multiplied by."""

    only_gradient: bool = False
    """Multiply the gradient and leave the value: a loss that saturates has no gradient left where it is large."""

    is_transient = False
    from_outside = True
    expected = Expected(cause=("gradient-outlier",), actions=("reclip",))

    def plant(self, trainer: Any) -> None:
        """Multiply the loss of one step, however often it is computed."""
        multiply = with_gradient_times if self.only_gradient else with_loss_times

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            return multiply(output, self.factor) if step == self.at_step else None

        on_training_forward(trainer, spoil)

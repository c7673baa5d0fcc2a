"""The fault `nan-loss`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, with_loss_times


@dataclass(kw_only=True)
class NanLoss(Fault):
    """The loss of one step is NaN, once."""

    is_transient = True
    steps_to_make_up = 1
    from_outside = True
    expected = Expected(cause=("step-not-finite",), actions=("skip_step",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Multiply the loss of one forward pass by NaN."""
        done: list[bool] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            if step != self.at_step or done:
                return None
            done.append(True)
            return with_loss_times(output, float("nan"))

        on_training_forward(trainer, spoil)

"""The fault `nan-from-then-on`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, with_loss_times


@dataclass(kw_only=True)
class NanFromThenOn(Fault):
    """Every loss is NaN from one step on, whatever is done."""

    is_transient = False
    expected = Expected(cause=("step-not-finite",), actions=("stop",), excess=None, completes=False)

    def plant(self, trainer: Any) -> None:
        """Multiply every loss by NaN from that step on."""
        reached: list[bool] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            if step >= self.at_step:
                reached.append(True)
            return with_loss_times(output, float("nan")) if reached else None

        on_training_forward(trainer, spoil)

"""The fault `weight-nan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class WeightNan(Fault):
    """One element of one weight becomes NaN between two steps, once."""

    is_transient = True
    needs_rollback = True
    from_outside = True
    expected = Expected(cause=("weights-not-finite", "step-not-finite"), actions=("rollback",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Write into the last of the matrices before a forward pass."""

        def harm(model: Any) -> None:
            weight = [p for p in model.parameters() if p.requires_grad and p.dim() > 1][-1].data
            weight.view(-1)[weight.numel() // 2] = float("nan")

        once_before_forward(trainer, self.at_step, harm)

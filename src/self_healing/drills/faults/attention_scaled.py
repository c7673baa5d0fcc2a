"""The fault `attention-scaled`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class AttentionScaled(Fault):
    """The weights of the attention projections are multiplied by a number between two steps, once; all stays finite."""

    at_step: int = 31
    factor: float = -30.0
    """What they are multiplied by."""

    is_transient = True
    needs_rollback = True
    expected = Expected(cause=("unexplained-state",), actions=("rollback",), within=1, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Multiply them in place before a forward pass."""

        def harm(model: Any) -> None:
            found = [p for name, p in model.named_parameters() if "attn" in name and name.endswith("proj.weight")]
            assert found, "this model names its attention projections in another way"
            for weight in found:
                weight.data.mul_(self.factor)

        once_before_forward(trainer, self.at_step, harm)

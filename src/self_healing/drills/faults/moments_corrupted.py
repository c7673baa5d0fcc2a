"""The fault `moments-corrupted`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class MomentsCorrupted(Fault):
    """The optimizer's running means of the gradients are multiplied by a number between two steps, once.

    Loss and gradients of the next step are as they should be: it is the update that ruins the weights.
    """

    at_step: int = 31
    factor: float = 1e4
    """What the first moments are multiplied by."""

    is_transient = True
    needs_rollback = True
    from_outside = True
    expected = Expected(cause=("unexplained-state",), actions=("rollback",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Multiply them in place when a step begins."""

        def harm(_model: Any) -> None:
            for moments in trainer.optimizer.state.values():
                moments["exp_avg"].mul_(self.factor)

        once_before_forward(trainer, self.at_step, harm)

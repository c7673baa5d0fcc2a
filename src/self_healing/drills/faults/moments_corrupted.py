"""The fault `moments-corrupted`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Fault


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

    def plant(self, trainer: Any) -> None:
        """Multiply them in place when a step begins."""
        from transformers import TrainerCallback

        fault = self
        done: list[bool] = []

        class Harm(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
                if state.global_step == fault.at_step and not done:
                    done.append(True)
                    for moments in optimizer.state.values():
                        moments["exp_avg"].mul_(fault.factor)

        trainer.add_callback(Harm())

"""The fault `oom-once-in-forward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Fault, on_training_forward


@dataclass(kw_only=True)
class OomOnceInForward(Fault):
    """One forward pass runs out of memory, once."""

    is_transient = True

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on the model."""
        import torch

        done: list[bool] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            if step == self.at_step and not done:
                done.append(True)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (a drill, in forward)")

        on_training_forward(trainer, spoil)

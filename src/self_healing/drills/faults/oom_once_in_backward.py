"""The fault `oom-once-in-backward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Fault


@dataclass(kw_only=True)
class OomOnceInBackward(Fault):
    """One backward pass runs out of memory half way, once: some gradients hold it already, others do not."""

    is_transient = True

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on a gradient in the middle of the model."""
        import torch

        done: list[bool] = []
        parameters = [p for p in trainer.model.parameters() if p.requires_grad]

        def spoil(gradient: Any) -> None:
            if int(trainer.state.global_step) == self.at_step and not done:
                done.append(True)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (a drill, in backward)")

        parameters[len(parameters) // 2].register_hook(spoil)

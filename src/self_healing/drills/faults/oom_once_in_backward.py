"""The fault `oom-once-in-backward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, run_out_of_memory


@dataclass(kw_only=True)
class OomOnceInBackward(Fault):
    """One backward pass runs out of memory half way, once: some gradients hold it already, others do not."""

    is_transient = True
    from_outside = True
    expected = Expected(cause=("out-of-memory",), actions=("clear_cache",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on a gradient in the middle of the model."""
        done: list[bool] = []
        parameters = [p for p in trainer.model.parameters() if p.requires_grad]

        def spoil(gradient: Any) -> None:
            if int(trainer.state.global_step) == self.at_step and not done:
                done.append(True)
                run_out_of_memory(gradient, "2.00 GiB. (a drill, in backward)")

        parameters[len(parameters) // 2].register_hook(spoil)

"""The fault `oom-once-in-forward`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, rows_of, run_out_of_memory


@dataclass(kw_only=True)
class OomOnceInForward(Fault):
    """One forward pass runs out of memory, once."""

    is_transient = True
    from_outside = True
    expected = Expected(cause=("out-of-memory",), actions=("clear_cache",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on the model."""
        done: list[bool] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            if step == self.at_step and not done:
                done.append(True)
                run_out_of_memory(rows_of(inputs), "2.00 GiB. (a drill, in forward)")

        on_training_forward(trainer, spoil)

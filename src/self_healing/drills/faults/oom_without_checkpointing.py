"""The fault `oom-without-checkpointing`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, rows_of, run_out_of_memory


@dataclass(kw_only=True)
class OomWithoutCheckpointing(Fault):
    """From one step on, every forward pass in training that keeps the activations of its layers runs out of memory."""

    is_transient = True
    expected = Expected(cause=("out-of-memory",), actions=("enable_gradient_checkpointing",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Raise what PyTorch raises, from a hook on the model."""

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            recomputes = any(getattr(module, "gradient_checkpointing", False) for module in trainer.model.modules())
            if step >= self.at_step and not recomputes:
                run_out_of_memory(rows_of(inputs), "2.00 GiB. (a drill, all activations)")

        on_training_forward(trainer, spoil)

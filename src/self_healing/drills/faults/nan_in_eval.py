"""The fault `nan-in-eval`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..fault import Expected, Fault, on_evaluation_forward, with_loss_times


@dataclass(kw_only=True)
class NanInEval(Fault):
    """The loss of one evaluation is NaN, once, while training is well."""

    is_transient = True
    needs = MappingProxyType({"eval_strategy": "steps", "eval_steps": 10})
    stage = "trainer"
    requires = ("transformers", "accelerate")
    expected = Expected(cause=("eval-not-finite",), actions=("alert",), within=10, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Multiply the loss of one forward pass in evaluation by NaN."""
        done: list[bool] = []

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            if step < self.at_step or done:
                return None
            done.append(True)
            return with_loss_times(output, float("nan"))

        on_evaluation_forward(trainer, spoil)

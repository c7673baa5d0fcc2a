"""The fault `checkpoint-sick`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class CheckpointSick(Fault):
    """The newest checkpoint is whole, but was written while the weights were harmed, by a run that was not allowed to do anything about it."""

    at_step: int = 31
    factor: float = -30.0
    """What the attention projections are multiplied by."""

    is_transient = True
    is_for_trainers = False
    stage = "resumed"
    needs: ClassVar[Mapping[str, Any]] = MappingProxyType({"first": {"max_effect": "nothing"}})
    expected = Expected(
        cause=("checkpoint-passed-over", "unexplained-state"), actions=("resume_from_older",), excess=0.0
    )

    def plant(self, trainer: Any) -> None:
        """Multiply them in place before a forward pass."""

        def harm(model: Any) -> None:
            for name, weight in model.named_parameters():
                if "attn" in name and name.endswith("proj.weight"):
                    weight.data.mul_(self.factor)

        once_before_forward(trainer, self.at_step, harm)

"""The fault `rank-disagrees`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, once_before_forward


@dataclass(kw_only=True)
class RankDisagrees(Fault):
    """One of two ranks has a weight that is NaN, and the other has not: by itself each would do something else."""

    at_step: int = 31

    is_transient = True
    is_for_trainers = False
    stage = "ranks"
    expected = Expected(cause=("weights-not-finite", "step-not-finite"), actions=("rollback",), within=4, excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Write into the last matrix of the second rank before a forward pass."""

        def harm(model: Any) -> None:
            weight = [p for p in model.parameters() if p.dim() > 1][-1].data
            weight.view(-1)[weight.numel() // 2] = float("nan")

        if trainer.rank == 1:
            once_before_forward(trainer, self.at_step, harm)

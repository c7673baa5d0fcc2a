"""The fault `infinite-gradient`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault


@dataclass(kw_only=True)
class InfiniteGradient(Fault):
    """One element of one gradient is infinite, once, while the loss is finite."""

    is_transient = True
    steps_to_make_up = 1
    from_outside = True
    expected = Expected(cause=("step-not-finite",), actions=("skip_step",), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Add infinity to a gradient as it is computed."""
        done: list[bool] = []
        parameter = next(p for p in trainer.model.parameters() if p.requires_grad)

        def spoil(gradient: Any) -> Any:
            if int(trainer.state.global_step) != self.at_step or done:
                return None
            done.append(True)
            spoiled = gradient.clone()
            spoiled.view(-1)[0] = float("inf")
            return spoiled

        parameter.register_hook(spoil)

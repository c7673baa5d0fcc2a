"""The action `enable-gradient-checkpointing`: trade compute for memory, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanEnableGradientCheckpointing
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class EnableGradientCheckpointing(Action):
    """Recompute activations in the backward pass instead of storing them.

    ## What it changes
    A step takes about a third longer and needs far less memory. The gradient is bitwise the same, dropout
    included, which is why it is tried before the batch is cut.

    ## Limits
    Void where it is already on, as in most TRL configurations. Models without support refuse. Under DeepSpeed
    ZeRO-3 and with flex attention the non-reentrant kind fails with a `CheckpointError`.
    """

    effect = Effect.TIME
    needs = CanEnableGradientCheckpointing
    cost_s = 0.5
    cost_steps = 1.0
    seed_name = "enable_gradient_checkpointing"
    counts = False

    def apply(self, run: object) -> Done:
        """Ask the run to switch checkpointing on and repeat the failed batch."""
        return Done(text=cast("CanEnableGradientCheckpointing", run).enable_gradient_checkpointing())

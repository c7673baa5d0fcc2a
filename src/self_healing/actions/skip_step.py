"""The action `skip-step`: leave one update out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanSkipStep
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class SkipStep(Action):
    """Drop the current update so that weights and optimizer state stay bitwise as they were.

    ## What it changes
    One batch teaches nothing. The gradients are removed, not zeroed: with zeros, momentum and weight decay would
    still move the weights.

    ## Limits
    It must come before the optimizer step. Weights that are already broken are not helped, and if every batch is
    bad the run stands still.
    """

    effect = Effect.RECIPE
    needs = CanSkipStep
    cost_steps = 1.0
    seed_name = "skip_step"

    def apply(self, run: object) -> Done:
        """Ask the run to leave this update out."""
        return Done(text=cast("CanSkipStep", run).skip_step())

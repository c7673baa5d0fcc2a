"""The action `reset-moments`: forget gradients that should never have been averaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanResetMoments
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class ResetMoments(Action):
    """Clear the optimizer's running averages.

    ## What it changes
    First and second moments start again from zero, as at step 0; the weights stay. A huge gradient that has
    entered the averages no longer bends the next hundreds of updates.

    ## Limits
    The first updates afterwards are as coarse as at the start of training: put a learning-rate ramp of 50 to 150
    steps beside it. Weights that are already bad stay bad.
    """

    effect = Effect.RECIPE
    needs = CanResetMoments
    cost_steps = 100.0
    seed_name = "reset_moments"

    def apply(self, run: object) -> Done:
        """Ask the run to clear the moments."""
        return Done(text=cast("CanResetMoments", run).reset_moments())

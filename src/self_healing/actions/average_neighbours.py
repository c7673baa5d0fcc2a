"""The action `average-neighbours`: go on without a state to return to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanAverageNeighbours
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class AverageNeighbours(Action):
    """Replace weights that are not finite by the average of the same weights in the nearest sound layers.

    ## What it changes
    The broken weights of a layer become the mean of the two nearest sound layers of its stack, at an end of the stack a
    copy of the one there is. Their moments start again from zero, the count of steps goes on. These weights were never
    trained where they are now: the loss rises and has to be learned down again. It is done only where it was asked for
    with `average_neighbours = true`, and never while a state of the run, in memory or on disk, can be returned to.

    ## Limits
    Only weights of a stack of equal layers, such as the blocks of a transformer, have neighbours: an embedding or a head
    has none. Where more than half of a stack is broken nothing is done. Values that are finite and wrong are not seen.

    ## Example
    A run of four layers that keeps no states loses one element of `layers.1.mlp.down_proj.weight` to a NaN. The weight
    becomes the mean of those of `layers.0` and `layers.2`, and the step that showed it is trained again.
    """

    effect = Effect.RECIPE
    needs = CanAverageNeighbours
    cost_steps = 100_000.0
    opt_in = "average_neighbours"

    def apply(self, run: object) -> Done:
        """Ask the run to mend its weights."""
        return Done(text=cast("CanAverageNeighbours", run).average_neighbours())

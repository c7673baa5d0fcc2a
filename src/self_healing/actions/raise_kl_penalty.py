"""The action `raise-kl-penalty`: hold the policy closer to its reference."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanRaiseKlPenalty
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class RaiseKlPenalty(Action):
    """Multiply the weight of the divergence from the reference (`beta`), from the next step on.

    ## What it changes
    The objective: what the policy earns counts for less beside how far it is from its reference. What it logs as loss
    changes with it, the reward does not.

    ## Limits
    Only where the trainer has a reference and reads the weight at every step. Without one (`beta` of 0) nothing can be
    raised: the reference was never loaded. In a rung it stands before the return, so that nothing is returned for nothing.
    """

    factor: float = 4.0
    """What the weight is multiplied by."""
    least: float = 0.04
    """What the weight becomes at least: a raise that nobody notices only loses time."""
    most: float = 1.0
    """The weight never goes above this."""
    takes_back: bool = False
    """True where the weight becomes again what it was before it was raised by this factor."""

    effect = Effect.RECIPE
    needs = CanRaiseKlPenalty
    cost_steps = 60.0

    def __post_init__(self) -> None:
        """Refuse what is no raise."""
        if not 1 < self.factor < math.inf:
            raise ValueError(f"[actions.{self.name()}] factor = {self.factor}: must be a number above 1")
        if not 0 <= self.least < math.inf:
            raise ValueError(f"[actions.{self.name()}] least = {self.least}: must be a weight, 0 or more")
        if not 0 < self.most < math.inf:
            raise ValueError(f"[actions.{self.name()}] most = {self.most}: must be a weight above 0")

    def apply(self, run: object) -> Done:
        """Ask the run for another weight, and say what it is now."""
        factor = 1 / self.factor if self.takes_back else self.factor
        weight = cast("CanRaiseKlPenalty", run).raise_kl_penalty(factor, least=self.least, most=self.most)
        return Done(text=f"the weight of the KL penalty is now {weight:.3g}")

    def undo(self) -> Self | None:
        """Return the action that sets the weight back."""
        return None if self.takes_back else replace(self, takes_back=True)

"""The action `tighten-clipping`: no single gradient may push that far again."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanTightenClipping
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class TightenClipping(Action):
    """Lower the limit on the gradient norm, or set one where there was none.

    ## What it changes
    Gradients longer than the limit are shortened to it, so outliers lose their force and ordinary steps stay as
    they are, provided the limit is above the usual norm.

    ## Limits
    A limit below the usual norm turns into a lower learning rate for every step. Clipping cannot repair a
    gradient that is not finite: NaN times any factor is NaN.
    """

    factor: float = 0.5
    """What an existing limit is multiplied by."""
    initial: float = 1.0
    """The limit set where clipping was off."""
    takes_back: bool = False
    """True where the limit becomes again what it was before it was tightened by this factor."""

    effect = Effect.RECIPE
    needs = CanTightenClipping
    cost_steps = 5.0
    seed_name = "reclip"

    def __post_init__(self) -> None:
        """Refuse limits that are no tighter than before."""
        if not 0 < self.factor < 1:
            raise ValueError(f"[actions.{self.name()}] factor = {self.factor}: must be above 0 and below 1")
        if not 0 < self.initial < math.inf:
            raise ValueError(f"[actions.{self.name()}] initial = {self.initial}: must be a gradient norm above 0")

    def apply(self, run: object) -> Done:
        """Ask the run for a tighter limit, and say what it is now."""
        factor = 1 / self.factor if self.takes_back else self.factor
        limit = cast("CanTightenClipping", run).tighten_clipping(factor=factor, initial=self.initial)
        return Done(
            text=f"gradient norm is now limited to {limit:.3g}" if limit else "gradient norm is no longer limited"
        )

    def undo(self) -> Self | None:
        """Return the action that loosens the limit again: one below the usual norm slows every step down."""
        return None if self.takes_back else replace(self, takes_back=True)

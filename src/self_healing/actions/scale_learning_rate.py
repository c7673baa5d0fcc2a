"""The action `scale-learning-rate`: smaller steps from here on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanScaleLearningRate
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class ScaleLearningRate(Action):
    """Multiply the learning rate and let the schedule keep its shape from there on.

    ## What it changes
    Every parameter group's rate, now and for every later step of the schedule, until it is taken back.

    ## Limits
    It does not repair weights that are already bad, so it stands beside a rollback after a NaN. The run refuses
    to go below `floor`; a floor of 0 is none. A factor above 1 is for runs that do not learn at all.
    """

    factor: float | None = None
    """What the rate is multiplied by; from the setting `lr_factor` where left open."""
    floor: float | None = None
    """The rate is not cut below this; from the setting `min_learning_rate` where left open, and 0 for no limit."""
    lasting: bool = False
    """True where it is never taken back, because the rate before it cannot work: a run that was dead from its start."""

    effect = Effect.RECIPE
    turns = "learning-rate"
    needs = CanScaleLearningRate
    cost_steps = 100.0
    fills = {"factor": "lr_factor", "floor": "min_learning_rate"}
    seed_name = "halve_lr"

    def __post_init__(self) -> None:
        """Refuse factors that would stop or reverse training."""
        if self.factor is not None and not 0 < self.factor < math.inf:
            raise ValueError(f"[actions.{self.name()}] factor = {self.factor}: must be a number above 0")
        if self.floor is not None and not 0 <= self.floor < math.inf:
            raise ValueError(f"[actions.{self.name()}] floor = {self.floor}: must be a learning rate, 0 or more")

    def apply(self, run: object) -> Done:
        """Ask the run to scale its rate, and say what it is now."""
        assert self.factor is not None, "scale-learning-rate: factor is filled from the settings before a plan is made"
        rate = cast("CanScaleLearningRate", run).scale_learning_rate(self.factor, floor=self.floor)
        return Done(text=f"learning rate is now {rate:.3g}, times {self.factor:g}")

    def undo(self) -> ScaleLearningRate | None:
        """Return the action that multiplies by the inverse, unless the change is to last."""
        if self.factor is None or self.lasting:
            return None
        return ScaleLearningRate(factor=1 / self.factor, floor=self.floor)

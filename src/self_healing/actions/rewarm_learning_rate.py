"""The action `rewarm-learning-rate`: small steps first, then back to the schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanRewarmLearningRate
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class RewarmLearningRate(Action):
    """Cut the learning rate and ramp it back to the schedule over a number of steps.

    ## What it changes
    The rate starts at `factor` times the schedule and returns to it linearly. It takes itself back: after the
    ramp the recipe is the one that was asked for. A second one during the ramp cuts the rate that it finds, and all
    of that returns over the `ramp_steps` of the second.

    ## Limits
    If the incident returns during the ramp the schedule itself is too hot, and a lasting cut
    (`scale-learning-rate`) is the better rung. No cut goes below `floor`; a schedule that decays afterwards may.
    """

    factor: float | None = None
    """Where the ramp starts, as a share of the schedule; from the setting `lr_factor` where left open."""
    ramp_steps: int | None = None
    """Steps until the schedule is reached again; from the setting `lr_ramp_steps` where left open."""
    floor: float | None = None
    """The rate is not cut below this; from the setting `min_learning_rate` where left open."""

    effect = Effect.RECIPE
    turns = "learning-rate"
    needs = CanRewarmLearningRate
    cost_steps = 50.0
    fills = {"factor": "lr_factor", "ramp_steps": "lr_ramp_steps", "floor": "min_learning_rate"}
    seed_name = "rewarm_lr"

    def __post_init__(self) -> None:
        """Refuse ramps that do not rise."""
        if self.factor is not None and not 0 < self.factor <= 1:
            raise ValueError(f"[actions.{self.name()}] factor = {self.factor}: must be above 0 and at most 1")
        if self.ramp_steps is not None and self.ramp_steps < 1:
            raise ValueError(f"[actions.{self.name()}] ramp_steps = {self.ramp_steps}: must be at least 1")
        if self.floor is not None and not 0 <= self.floor < math.inf:
            raise ValueError(f"[actions.{self.name()}] floor = {self.floor}: must be a learning rate, 0 or more")

    def apply(self, run: object) -> Done:
        """Ask the run to start the ramp, and say what the rate is now."""
        assert self.factor is not None, "rewarm-learning-rate: factor is filled before a plan is made"
        assert self.ramp_steps is not None, "rewarm-learning-rate: ramp_steps is filled before a plan is made"
        rate = cast("CanRewarmLearningRate", run).rewarm_learning_rate(
            self.factor, ramp_steps=self.ramp_steps, floor=self.floor
        )
        after = f", back to the schedule over {self.ramp_steps} steps" if self.factor < 1 else ", the ramp has ended"
        return Done(text=f"learning rate is now {rate:.3g}{after}")

    def undo(self) -> Self | None:
        """Return the action that ends the ramp now."""
        return None if self.factor is None or self.factor >= 1 else replace(self, factor=1.0)

"""The action `try-learning-rate`: larger steps on trial, for a run that does not move."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanScaleLearningRate
from ..core.failure import Effect
from .scale_learning_rate import ScaleLearningRate


@dataclass(frozen=True, kw_only=True)
class TryLearningRate(Action):
    """Raise the learning rate for a window and keep that only if the trouble is gone at its end.

    ## What it changes
    Every parameter group's rate, now and for every later step of the schedule. Where it has helped it stays; where it
    has not, one further step goes up to `most`, and if that was in vain too the schedule's own rate is back.

    ## Limits
    The rate is never more than `most` times that of the schedule. A window is too short to see what a high rate does in
    the long run; what goes wrong later is for other rules. It is for runs whose data are known to be sound.
    """

    factor: float = 2.0
    """What the rate is multiplied by."""
    most: float = 5.0
    """What the schedule's rate is multiplied by at most, all tries together."""
    window: int = 64
    """Observations after which it is judged."""
    longest: int = 192
    """Observations after which it is judged at the latest, where the run has begun to move meanwhile."""

    effect = Effect.RECIPE
    turns = "learning-rate"
    needs = CanScaleLearningRate
    cost_steps = 100.0

    def __post_init__(self) -> None:
        """Refuse what is no raise, and windows that cannot be watched."""
        if not 1 < self.factor < math.inf:
            raise ValueError(f"[actions.{self.name()}] factor = {self.factor}: must be a number above 1")
        if not self.factor <= self.most < math.inf:
            raise ValueError(f"[actions.{self.name()}] most = {self.most}: must be at least factor, {self.factor}")
        if self.window < 1:
            raise ValueError(f"[actions.{self.name()}] window = {self.window}: must be at least 1")
        if self.longest < self.window:
            raise ValueError(
                f"[actions.{self.name()}] longest = {self.longest}: must be at least window, {self.window}"
            )

    def again(self, times: int) -> Self:
        """Return what is left up to the most: a second try goes on from the first."""
        return replace(self, factor=self.most / self.factor) if times and self.most > self.factor else self

    def watch_for(self) -> tuple[int, int]:
        """Return the length of the trial."""
        return self.window, self.longest

    def apply(self, run: object) -> Done:
        """Ask the run to raise its rate, and say what it is now."""
        rate = cast("CanScaleLearningRate", run).scale_learning_rate(self.factor, floor=None)
        return Done(text=f"learning rate is now {rate:.3g}, times {self.factor:g}, on trial")

    def undo(self) -> ScaleLearningRate:
        """Return the action that takes the raise back."""
        return ScaleLearningRate(factor=1 / self.factor)

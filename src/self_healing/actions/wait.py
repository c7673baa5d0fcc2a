"""The action `wait`: the cheapest remedy, because most spikes heal by themselves."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.action import Action, Done
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class Wait(Action):
    """Watch the run for a while before doing anything stronger.

    ## What it changes
    Nothing. While the incident is open its samples stay outside the baseline and no snapshot is promoted to
    known good, so waiting cannot make a bad state look normal. The healer goes on waiting, up to `longest`
    observations, for as long as the excess keeps falling.

    ## Limits
    Only worth it while weights are finite: a NaN never heals by itself. If the trouble is real, a rollback has
    to go back that much further.
    """

    steps: int = 16
    """Observations to watch before the next rung may be tried."""
    longest: int = 64
    """Observations to watch at most, where the incident is getting smaller meanwhile."""

    effect = Effect.NOTHING
    cost_steps = 16.0

    def __post_init__(self) -> None:
        """Refuse windows that cannot be watched."""
        if self.steps < 1:
            raise ValueError(f"[actions.{self.name()}] steps = {self.steps}: must be at least 1")
        if self.longest < self.steps:
            raise ValueError(
                f"[actions.{self.name()}] longest = {self.longest}: must be at least steps, which is {self.steps}"
            )

    def watch_for(self) -> tuple[int, int]:
        """Return the length of the hold."""
        return self.steps, self.longest

    def apply(self, run: object) -> Done:
        """Say what is watched; the run is not touched."""
        return Done(text=f"watching the next {self.steps} observations, up to {self.longest} while the excess falls")

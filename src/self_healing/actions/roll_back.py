"""The action `roll-back`: leave a bad state by returning to a good one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanRollBack, ReturnAsked
from ..core.failure import Effect

DEEPEST = 2


@dataclass(frozen=True, kw_only=True)
class RollBack(Action):
    """Return model, optimizer, schedule, random state and data position to an earlier known good state.

    ## What it changes
    The steps since that state are done again, with the same data and the same recipe. Alone it therefore repeats
    faithfully: a hardware glitch does not come back, a bad batch or a rate that is too high does. Put an action
    beside it that changes something where the cause is not a glitch.

    ## Limits
    Only states that were qualified as known good and lie before the onset are considered. A run that keeps no
    snapshot has nothing to return to and the rung is passed over.
    """

    depth: int = 0
    """0 for the newest known good state, 1 for one about four times as old, 2 for the oldest there is."""
    before_step: int | None = None
    """The state must be older than this step; from the onset of the incident where left open."""
    min_steps: int | None = None
    """Go back at least this many steps; from the setting `rollback_steps` where left open."""

    effect = Effect.TIME
    needs = CanRollBack
    cost_s = 1.0
    cost_steps = 64.0
    fills = {"min_steps": "rollback_steps"}
    seed_name = "rollback"
    retries_faithfully = True

    def __post_init__(self) -> None:
        """Refuse depths and distances that do not exist."""
        if self.depth not in range(DEEPEST + 1):
            raise ValueError(f"[actions.{self.name()}] depth = {self.depth}: must be 0, 1 or 2")
        if self.before_step is not None and self.before_step < 0:
            raise ValueError(f"[actions.{self.name()}] before_step = {self.before_step}: must be a step, 0 or more")
        if self.min_steps is not None and self.min_steps < 0:
            raise ValueError(
                f"[actions.{self.name()}] min_steps = {self.min_steps}: must be a number of steps, 0 or more"
            )

    def assumed_cost_s(self, step_time_s: float) -> float:
        """Return a cost that grows with the age of the state returned to."""
        return self.cost_s + self.cost_steps * 4.0**self.depth * step_time_s

    def for_incident(self, *, onset_step: int | None, because: str) -> Self:
        """Return to before the onset, where that is known."""
        return replace(self, before_step=onset_step) if self.before_step is None else self

    def apply(self, run: object) -> Done:
        """Ask the run to return; say where it is now, or where it is about to go."""
        done = cast("CanRollBack", run).roll_back(
            before_step=self.before_step, depth=self.depth, min_steps=self.min_steps
        )
        if isinstance(done, ReturnAsked):
            return Done(text=f"a return to {done.key}, step {done.step}, is asked for", returns_to=done.key)
        return Done(text=f"rolled back to {done.key}, step {done.step}", restored=done.key, step=done.step)

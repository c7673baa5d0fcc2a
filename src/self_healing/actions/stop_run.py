"""The action `stop-run`: the last rung of every ladder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanStop
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class StopRun(Action):
    """End training in good order and write a postmortem, instead of wasting more compute.

    ## What it changes
    Training ends at this step. Checkpoints and logs stay; nothing is deleted.

    ## Limits
    It heals nothing, so it comes last, or first where the run cannot possibly succeed, such as after an error
    in the configuration.
    """

    reason: str = ""
    """Why the run ends; left empty, the plan's own reason is used."""

    effect = Effect.TIME
    needs = CanStop
    cost_steps = 1_000_000.0
    seed_name = "stop"
    counts = False
    is_final = True

    def for_incident(self, *, onset_step: int | None, because: str) -> Self:
        """Give the incident as the reason, where none was given."""
        return self if self.reason else replace(self, reason=because)

    def apply(self, run: object) -> Done:
        """Ask the run to end."""
        stopped = cast("CanStop", run).stop_run(self.reason)
        return Done(text=stopped) if isinstance(stopped, str) else Done(text=stopped.text, step=stopped.step)

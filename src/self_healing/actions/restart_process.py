"""The action `restart-process`: for a process that cannot be repaired from inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanRestart
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class RestartProcess(Action):
    """End the process in good order and start it again from the last good state.

    ## What it changes
    Everything that lives in the process is built anew: CUDA context, communicators, data workers. The work since
    the last good state is done again with the same recipe.

    ## Limits
    It needs a supervisor outside the process. After a device-side assert or an illegal access it is the only way,
    because the CUDA context stays broken; against a bug in the script it only buys the same crash once more.
    """

    effect = Effect.TIME
    needs = CanRestart
    cost_s = 60.0
    cost_steps = 250.0
    seed_name = "restart"
    retries_faithfully = True

    def apply(self, run: object) -> Done:
        """Ask the run for a restart; it happens after the plan has been recorded."""
        return Done(text=cast("CanRestart", run).restart_process())

"""The action `exclude-node`: go on without a machine that keeps failing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanExcludeNode
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class ExcludeNode(Action):
    """Restart the job without the machine that keeps failing.

    ## What it changes
    The job is scheduled again on a spare machine, or on fewer with more accumulation, from the last good state.

    ## Limits
    It needs a scheduler that takes such wishes. A machine is only suspect after it failed repeatedly or reported
    a hardware error: an OOM on one rank is not the machine's fault.
    """

    effect = Effect.TIME
    needs = CanExcludeNode
    cost_s = 300.0
    cost_steps = 500.0
    seed_name = "exclude_node"

    def apply(self, run: object) -> Done:
        """Ask the run to go on elsewhere."""
        return Done(text=cast("CanExcludeNode", run).exclude_node())

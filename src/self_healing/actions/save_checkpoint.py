"""The action `save-checkpoint`: keep a good state while there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanSaveCheckpoint
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class SaveCheckpoint(Action):
    """Write a checkpoint now, provided the state is known to be good.

    ## What it changes
    One more checkpoint on disk. Training itself is the same with or without it.

    ## Limits
    The run refuses when weights or moments are not finite: a checkpoint of a broken state would become the
    newest one and be resumed from. It needs disk space and, on large models, minutes.
    """

    effect = Effect.NOTHING
    needs = CanSaveCheckpoint
    cost_s = 10.0
    seed_name = "emergency_checkpoint"

    def apply(self, run: object) -> Done:
        """Ask the run to save."""
        return Done(text=cast("CanSaveCheckpoint", run).save_checkpoint())

"""The action `clear-cache`: give back what the allocator only keeps in reserve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanClearCache
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class ClearCache(Action):
    """Release device memory that the allocator holds without using it.

    ## What it changes
    Dead references are collected and cached blocks go back to the driver; no tensor in use is touched and the
    failed batch is tried again as it was. The next few allocations are slower.

    ## Limits
    Helps against fragmentation and left-over tensors only. A batch that truly does not fit will fail again, so
    it is always followed by a rung that needs less memory.
    """

    effect = Effect.NOTHING
    needs = CanClearCache
    cost_s = 0.2
    seed_name = "clear_cache"
    counts = False

    def apply(self, run: object) -> Done:
        """Ask the run to drop references and empty its cache."""
        return Done(text=cast("CanClearCache", run).clear_cache())

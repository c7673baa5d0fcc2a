"""The action `split-micro-batch`: the same batch in pieces that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanSplitMicroBatch
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class SplitMicroBatch(Action):
    """Run the failed micro-batch again in smaller pieces that add up to the same gradient.

    ## What it changes
    Peak memory falls roughly with the number of pieces and the step takes longer. The effective batch stays the
    same; in fp32 the gradient agrees to about 1e-6.

    ## Limits
    Dropout draws new masks for the pieces, and losses that couple the rows of a batch (ORPO, CPO, packed
    sequences) cannot be cut exactly; adapters refuse there. A batch of one row cannot be split at all.
    """

    parts: int = 2
    """Number of pieces the micro-batch is cut into."""

    effect = Effect.TIME
    needs = CanSplitMicroBatch
    cost_s = 1.0
    cost_steps = 2.0
    seed_name = "split_micro_batch"
    counts = False

    def __post_init__(self) -> None:
        """Refuse a split into fewer than two pieces."""
        if self.parts < 2:
            raise ValueError(f"[actions.{self.name()}] parts = {self.parts}: must be at least 2")

    def apply(self, run: object) -> Done:
        """Ask the run to repeat the micro-batch in pieces."""
        return Done(text=cast("CanSplitMicroBatch", run).split_micro_batch(parts=self.parts))

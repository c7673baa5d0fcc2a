"""The action `halve-batch-size`: a smaller batch for the rest of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanHalveBatchSize
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class HalveBatchSize(Action):
    """Halve the batch per device and double accumulation, for the rest of the run.

    ## What it changes
    Memory for activations halves; the effective batch and with it the recipe stay as they were. The data loader
    is built again at the same position.

    ## Limits
    It stops at `floor`. Where the effective batch cannot be kept the adapter refuses, because a silently smaller
    batch would be another recipe. Batch-norm statistics, GRPO groups and losses that compare rows depend on the batch
    per device: where that was seen, it is refused unless `max_effect` is `recipe`, and then said.
    """

    floor: int | None = None
    """The batch per device never goes below this; from the setting `min_batch_size` where left open."""

    effect = Effect.TIME
    needs = CanHalveBatchSize
    cost_s = 5.0
    cost_steps = 10.0
    fills = {"floor": "min_batch_size"}
    seed_name = "halve_batch_size"

    def __post_init__(self) -> None:
        """Refuse an empty batch."""
        if self.floor is not None and self.floor < 1:
            raise ValueError(f"[actions.{self.name()}] floor = {self.floor}: must be at least 1")

    def apply(self, run: object) -> Done:
        """Ask the run to halve its batch."""
        assert self.floor is not None, "halve-batch-size: floor is filled from the settings before a plan is made"
        return Done(text=cast("CanHalveBatchSize", run).halve_batch_size(floor=self.floor))

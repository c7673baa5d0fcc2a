"""The action `skip-batches`: do not feed the run what made it ill."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanSkipBatches, ReturnAsked
from ..core.failure import Effect

FURTHER = 4
"""How many times as many batches beyond the evidence are left out where leaving out fewer was not enough."""
MOST = 256


@dataclass(frozen=True, kw_only=True)
class SkipBatches(Action):
    """Move the data position past the batches that did harm.

    ## What it changes
    The batches between the restored state and the incident, and `margin` more, are not seen in this epoch. It
    usually stands beside a rollback; the large published runs recovered from spikes this way.

    ## Limits
    Spikes come from a batch and a state together, so the same data may be harmless elsewhere: skipping is not
    proof that the data is bad. Streams that cannot seek have to read and drop.
    """

    margin: int = 1
    """Batches left out beyond the one at which the incident was seen; four times as many with each further try."""

    effect = Effect.RECIPE
    needs = CanSkipBatches
    cost_s = 1.0
    cost_steps = 4.0
    seed_name = "skip_batch"

    def __post_init__(self) -> None:
        """Refuse a margin that would bring the bad batch back."""
        if self.margin < 0:
            raise ValueError(f"[actions.{self.name()}] margin = {self.margin}: must be a number of batches, 0 or more")

    def again(self, times: int) -> Self:
        """Return the action with a larger margin: where the next batches are bad too, others behind them may be."""
        return replace(self, margin=max(self.margin, min(MOST, self.margin * FURTHER**times)))

    def apply(self, run: object) -> Done:
        """Ask the run to move on in its data."""
        done = cast("CanSkipBatches", run).skip_batches(margin=self.margin)
        if isinstance(done, str):
            return Done(text=done)
        if isinstance(done, ReturnAsked):
            return Done(text=done.text, returns_to=done.key)
        return Done(text=done.text, restored=done.key, step=done.step)

"""The action `quarantine-records`: name the bad records and leave them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..core.action import Action, Done
from ..core.capability import CanQuarantine
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class QuarantineRecords(Action):
    """Name the records of the failed batch and leave them out from now on.

    ## What it changes
    The records are listed with index and fingerprint for a person to look at, and are not drawn again in any
    epoch. Everything else of the batch is trained on.

    ## Limits
    The adapter must be able to tell which records were in the batch. More than one record in a thousand means
    that the data set or the collator is wrong, not the records; then the run has to stop.
    """

    effect = Effect.RECIPE
    needs = CanQuarantine
    cost_s = 0.5
    cost_steps = 1.0
    seed_name = "quarantine_records"

    def apply(self, run: object) -> Done:
        """Ask the run to list and leave out the records."""
        return Done(text=cast("CanQuarantine", run).quarantine_records())

"""The action `retry-later`: the answer to trouble outside the run that passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self, cast

from ..core.action import Action, Done
from ..core.capability import CanRetry
from ..core.failure import Effect


@dataclass(frozen=True, kw_only=True)
class RetryLater(Action):
    """Repeat the failed operation after a pause that doubles with every attempt.

    ## What it changes
    Nothing but time: exactly the same work is done again. The pause is `base_s * 2 ** (attempt - 1)`, at most
    `longest_s`; the adapter adds the jitter that keeps many ranks from knocking at the same moment.

    ## Limits
    Only for failures that pass, such as an unreachable server or a worker that died once. The same failure
    after a faithful repetition is deterministic, and another repetition is wasted.
    """

    attempt: int = 1
    """Which attempt this is, counted from 1."""
    base_s: float | None = None
    """Seconds before the first attempt; from the setting `backoff_base_s` where left open."""
    longest_s: float = 300.0
    """The pause never grows beyond this many seconds."""

    effect = Effect.TIME
    needs = CanRetry
    cost_s = 30.0
    fills = {"base_s": "backoff_base_s"}
    seed_name = "backoff"
    retries_faithfully = True
    lets_time_pass = True

    def __post_init__(self) -> None:
        """Refuse attempts and pauses that make no sense."""
        if self.attempt < 1:
            raise ValueError(f"[actions.{self.name()}] attempt = {self.attempt}: must be at least 1")
        if self.base_s is not None and not 0 <= self.base_s < math.inf:
            raise ValueError(f"[actions.{self.name()}] base_s = {self.base_s}: must be a number of seconds, 0 or more")
        if not 0 <= self.longest_s < math.inf:
            raise ValueError(
                f"[actions.{self.name()}] longest_s = {self.longest_s}: must be a number of seconds, 0 or more"
            )

    @property
    def wait_s(self) -> float:
        """The pause before this attempt, in seconds and without jitter."""
        assert self.base_s is not None, "retry-later: base_s is filled from the settings before a plan is made"
        doublings = min(self.attempt - 1, 64)
        return min(self.base_s * 2.0**doublings, self.longest_s)

    def assumed_cost_s(self, step_time_s: float) -> float:
        """Return the pause itself, where it is known."""
        return self.cost_s if self.base_s is None else self.wait_s

    def again(self, times: int) -> Self:
        """Return the next attempt, after a longer pause."""
        return replace(self, attempt=self.attempt + times)

    def apply(self, run: object) -> Done:
        """Ask the run to pause and repeat."""
        return Done(text=cast("CanRetry", run).retry_later(wait_s=self.wait_s))

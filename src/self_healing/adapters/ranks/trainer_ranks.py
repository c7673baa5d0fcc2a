"""The other processes of a trainer's training: what can be done to all of them alike, and what a step takes each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .own_time import OwnTime
from .session_ranks import SessionRanks
from .shared_abilities import SharedAbilities

if TYPE_CHECKING:
    from ..rollback.state_keeper import StateKeeper
    from ..run.run_desk import RunDesk
    from ..wrapping import Wrapping


class TrainerRanks(SessionRanks):
    """Votes at the ends of steps."""

    def __init__(self, *, is_one_of_several: bool) -> None:
        super().__init__(is_one_of_several=is_one_of_several)
        self._own_time = OwnTime()

    def abilities_of(self, abilities: Any, keeper: StateKeeper | None = None) -> Any:
        """Return what plans may be carried out with."""
        return SharedAbilities(abilities, keeper) if self.is_one_of_several else abilities

    def attach(self, accelerator: Any, changes: Wrapping) -> None:
        """Measure what steps take this process."""
        if self.is_one_of_several:
            self._own_time.attach(accelerator, changes)

    def step_ended(self, desk: RunDesk, *, began_s: float) -> bool:
        """Vote where it is time; say whether something was done, or is to be."""
        decision = self._vote(desk, self._own_time.since(began_s))
        return decision is not None and (bool(decision.plans) or decision.takes_state)

    def epoch_ended(self, desk: RunDesk) -> None:
        """Vote on what was seen since the last vote: after the last epoch there is no other."""
        self._vote_now(desk)

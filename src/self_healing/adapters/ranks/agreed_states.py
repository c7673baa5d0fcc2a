"""States that all ranks take at the same steps, and return to together.

When a state is worth it, and which can be trusted, is each rank's own opinion. What is done follows from what all have said
in a vote: the latest of the steps that were wished for is when all take one, and only a state that every rank holds and none
has found harmed is returned to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .ranks_of_run import RanksOfRun, States

if TYPE_CHECKING:
    from ...core.voting import Decision
    from ...snapshots.verdicts import SavedState
    from ..rollback.state_keeper import StateKeeper


class AgreedStates:
    """The states of one rank, as far as all agree on them."""

    def __init__(self, keeper: StateKeeper, step: Callable[[], int]) -> None:
        self._keeper = keeper
        self._step = step
        self._takes_at = -1
        """The step whose state all take."""
        self.ranks: RanksOfRun | None = None
        """The others, once they were met."""
        keeper.agreed, keeper.common = self.takes, self.newest
        keeper.shared.publishes_one_more = True

    def said(self) -> States:
        """Return what this rank says in votes."""
        return States(next_step=lambda: self._keeper.schedule.next_step, steps=self._returnable)

    def begins_at(self, step: int) -> None:
        """Have all take the state that they begin with."""
        self._takes_at = step

    def returned(self) -> None:
        """Take note that all are at an earlier state, which they keep."""
        self._takes_at = -1

    def decided(self, decision: Decision) -> None:
        """Take note of what a vote came to."""
        if decision.takes_state:
            self._takes_at = self._step()

    def takes(self, step: int) -> bool:
        """Say whether all take the state of a step."""
        return step == self._takes_at

    def newest(self, *, before_step: int | None, depth: int, min_steps: int | None) -> SavedState | None:
        """Return the state to go back to; the same on every rank, None where they have none in common."""
        ranks, step = self.ranks, self._step()
        if ranks is None:
            return None
        latest = step if before_step is None else before_step - 1  # what somebody holds for harmed is not among them
        if min_steps is not None:
            latest = min(latest, step - min_steps)
        common = sorted(ranks.voting.states, reverse=True)
        usable = [each for each in common if each <= latest] or common[-1:]
        if not usable:
            return None
        wanted = usable[min(depth, len(usable) - 1)]
        return next((state for state in self._keeper.states if state.step == wanted), None)

    def _returnable(self) -> list[int]:
        keeper = self._keeper
        return [each.step for each in keeper.states if not each.verdict.is_sick and keeper.loop.is_in_reach(each.key)]

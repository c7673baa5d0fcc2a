"""The other processes of a training, as the session of one sees them; nothing at all where there are none."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...core.errors import RanksParted
from ...core.failure import Mode
from .agreed_states import AgreedStates
from .ranks_of_run import RanksOfRun
from .side_group import SideGroup

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ...core.voting import Decision
    from ..rollback.state_keeper import StateKeeper
    from ..run.run_desk import RunDesk

logger = logging.getLogger("self_healing.ranks")


class SessionRanks:
    """Meets the others when training begins, votes with them, and leaves them at its end."""

    def __init__(self, *, is_one_of_several: bool) -> None:
        self.is_one_of_several = is_one_of_several
        self._ranks: RanksOfRun | None = None
        self._states: AgreedStates | None = None

    def mode_of(self, mode: Mode) -> Mode:
        """Return what may be done about plans: where the others cannot be asked, they are only shown."""
        is_asked = not self.is_one_of_several or SideGroup.is_possible()
        return mode if is_asked or mode is not Mode.HEAL else Mode.ADVISE

    def meet(self, desk: RunDesk, config: HealingConfig, keeper: StateKeeper | None = None) -> None:
        """Meet the others, once: all of them begin to train at this moment."""
        if not self.is_one_of_several or self._ranks is not None:
            return
        if keeper is not None:
            self._states = AgreedStates(keeper, desk.step)
        said = None if self._states is None else self._states.said()
        try:
            self._ranks = RanksOfRun.join(desk, config, acts=desk.mode is Mode.HEAL, states=said)
        except RanksParted as error:
            desk.only_show(f"{error}; plans are only shown, and nobody is named who does not answer")
        if self._states is not None:
            self._states.ranks = self._ranks

    def begins_at(self, step: int, *, has_returned: bool = False) -> None:
        """Take note that all are at a step: training begins there, or has returned to it."""
        if self._states is not None and has_returned:
            self._states.returned()
        elif self._states is not None:
            self._states.begins_at(step)
        if self._ranks is not None:
            self._ranks.begins_at(step)

    def take_figures(self) -> dict[str, float]:
        """Return what the last vote has shown, once."""
        return {} if self._ranks is None else self._ranks.take_figures()

    def as_the_first_says(self, text: str) -> str | None:
        """Return what the first process says at a place that all have come to; None where it does not answer."""
        if not self.is_one_of_several:
            return text
        try:
            return None if self._ranks is None else self._ranks.group.exchange_texts(text)[0]
        except RanksParted as error:
            logger.warning("%s", error)
            return None

    def close(self, error: BaseException | None) -> None:
        """Leave the others, in good order or with an error."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(error if isinstance(error, Exception) else None)

    def _vote(self, desk: RunDesk, took_s: float) -> Decision | None:
        """Vote where it is time, once all that was seen is looked at; None where it is not, or where there is nobody."""
        if self._ranks is None:
            return None
        step = desk.step()
        if self._ranks.voting.is_time(step):
            desk.settle()
        return self._noted(self._ranks.step_ended(step, took_s=took_s))

    def _vote_now(self, desk: RunDesk) -> Decision | None:
        """Vote at once, at a place that all have come to for the same reason: the end of an epoch, for instance."""
        if self._ranks is None:
            return None
        desk.settle()
        return self._noted(self._ranks.vote(desk.step()))

    def _noted(self, decision: Decision | None) -> Decision | None:
        if decision is not None and self._states is not None:
            self._states.decided(decision)
        return decision

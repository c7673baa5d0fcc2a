"""The other processes of a trainer's training, as its session sees them; nothing at all where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import RanksParted
from ...core.failure import Mode
from .agreed_states import AgreedStates
from .own_time import OwnTime
from .ranks_of_run import RanksOfRun
from .shared_abilities import SharedAbilities
from .side_group import SideGroup

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ..rollback.state_keeper import StateKeeper
    from ..trainer.run_desk import RunDesk
    from ..trainer.wrapping import Wrapping


class TrainerRanks:
    """Meets the others when training begins, and votes with them at the ends of steps."""

    def __init__(self, *, is_one_of_several: bool) -> None:
        self.is_one_of_several = is_one_of_several
        self._own_time = OwnTime()
        self._ranks: RanksOfRun | None = None
        self._states: AgreedStates | None = None

    def mode_of(self, mode: Mode) -> Mode:
        """Return what may be done about plans: where the others cannot be asked, they are only shown."""
        is_asked = not self.is_one_of_several or SideGroup.is_possible()
        return mode if is_asked or mode is not Mode.HEAL else Mode.ADVISE

    def abilities_of(self, abilities: Any, keeper: StateKeeper | None = None) -> Any:
        """Return what plans may be carried out with."""
        return SharedAbilities(abilities, keeper) if self.is_one_of_several else abilities

    def attach(self, accelerator: Any, changes: Wrapping) -> None:
        """Measure what steps take this process."""
        if self.is_one_of_several:
            self._own_time.attach(accelerator, changes)

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

    def step_ended(self, desk: RunDesk, *, began_s: float) -> bool:
        """Vote where it is time; say whether something was done, or is to be."""
        if self._ranks is None:
            return False
        step = desk.step()
        if self._ranks.voting.is_time(step):
            desk.settle()
        decision = self._ranks.step_ended(step, took_s=self._own_time.since(began_s))
        if decision is None:
            return False
        if self._states is not None:
            self._states.decided(decision)
        return bool(decision.plans) or decision.takes_state

    def take_figures(self) -> dict[str, float]:
        """Return what the last vote has shown, once."""
        return {} if self._ranks is None else self._ranks.take_figures()

    def close(self, error: BaseException | None) -> None:
        """Leave the others, in good order or with an error."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(error if isinstance(error, Exception) else None)

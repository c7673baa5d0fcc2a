"""The other processes of a trainer's training, as its session sees them; nothing at all where there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.errors import RanksParted
from ...core.failure import Mode
from .own_time import OwnTime
from .ranks_of_run import RanksOfRun
from .shared_abilities import SharedAbilities
from .side_group import SideGroup

if TYPE_CHECKING:
    from ...config import HealingConfig
    from ..trainer.run_desk import RunDesk
    from ..trainer.wrapping import Wrapping


class TrainerRanks:
    """Meets the others when training begins, and votes with them at the ends of steps."""

    def __init__(self, *, is_one_of_several: bool) -> None:
        self.is_one_of_several = is_one_of_several
        self._own_time = OwnTime()
        self._ranks: RanksOfRun | None = None

    def mode_of(self, mode: Mode) -> Mode:
        """Return what may be done about plans: where the others cannot be asked, they are only shown."""
        is_asked = not self.is_one_of_several or SideGroup.is_possible()
        return mode if is_asked or mode is not Mode.HEAL else Mode.ADVISE

    def abilities_of(self, abilities: Any) -> Any:
        """Return what plans may be carried out with."""
        return SharedAbilities(abilities) if self.is_one_of_several else abilities

    def attach(self, accelerator: Any, changes: Wrapping) -> None:
        """Measure what steps take this process."""
        if self.is_one_of_several:
            self._own_time.attach(accelerator, changes)

    def meet(self, desk: RunDesk, config: HealingConfig) -> None:
        """Meet the others, once: all of them begin to train at this moment."""
        if not self.is_one_of_several or self._ranks is not None:
            return
        try:
            self._ranks = RanksOfRun.join(desk, config, acts=desk.mode is Mode.HEAL)
        except RanksParted as error:
            desk.only_show(f"{error}; plans are only shown, and nobody is named who does not answer")

    def step_ended(self, desk: RunDesk, *, began_s: float) -> bool:
        """Vote where it is time; say whether something was done."""
        if self._ranks is None:
            return False
        step = desk.step()
        if self._ranks.voting.is_time(step):
            desk.settle()
        decision = self._ranks.step_ended(step, took_s=self._own_time.since(began_s))
        return decision is not None and bool(decision.plans)

    def take_figures(self) -> dict[str, float]:
        """Return what the last vote has shown, once."""
        return {} if self._ranks is None else self._ranks.take_figures()

    def close(self, error: BaseException | None) -> None:
        """Leave the others, in good order or with an error."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close(error if isinstance(error, Exception) else None)

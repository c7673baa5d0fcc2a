"""The fault `clock-jump`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault

DAY_S = 86_400.0


@dataclass(kw_only=True)
class ClockJump(Fault):
    """The clock of the machine is set forward by a day in one step and back by two in another: nothing must come of it."""

    later: int = 15
    """Steps between the two."""

    is_transient = True
    is_for_trainers = False  # what it changes is the whole process's, for good
    expected = Expected(cause=(), actions=(), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Have Python's clock, not the monotonic one, tell another time from these steps on."""
        usual = time.time

        def told() -> float:
            step = int(trainer.state.global_step)
            return usual() + (0.0 if step < self.at_step else DAY_S if step < self.at_step + self.later else -DAY_S)

        time.time = told

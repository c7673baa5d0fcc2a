"""The fault `sigstop`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, signal_once


@dataclass(kw_only=True)
class Sigstop(Fault):
    """The process stops (SIGSTOP): it is there, says nothing and does nothing any more, as one that hangs."""

    at_step: int = 31

    is_transient = True
    is_for_trainers = False
    stage = "command"
    hangs = True
    from_outside = True
    expected = Expected(cause=("exited: hang",), actions=("restart", "resume"), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Have the process get it in the middle of a step."""
        signal_once(trainer, self.at_step, signal.SIGSTOP)

"""The fault `sigterm`."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, signal_once


@dataclass(kw_only=True)
class Sigterm(Fault):
    """The process is asked to end (SIGTERM), as a scheduler does before it takes the machine away."""

    at_step: int = 31

    is_transient = True
    is_for_trainers = False
    stage = "command"
    from_outside = True
    expected = Expected(cause=("exited: preempted",), actions=("restart", "resume"), excess=0.0)

    def plant(self, trainer: Any) -> None:
        """Have the process get it in the middle of a step."""
        signal_once(trainer, self.at_step, signal.SIGTERM)

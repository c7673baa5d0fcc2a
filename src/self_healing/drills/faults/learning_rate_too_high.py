"""The fault `learning-rate-too-high`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault


@dataclass(kw_only=True)
class LearningRateTooHigh(Fault):
    """The run is started with a learning rate a hundred times too high: it never learns anything."""

    at_step: int = 0
    factor: float = 100.0
    """How many times too high."""

    is_transient = False
    needs_rollback = True
    expected = Expected(cause=("dead-run",), actions=("rollback", "halve_lr"), within=12, excess=0.25)

    def plant(self, trainer: Any) -> None:
        """Write it into the arguments, as whoever mistook an exponent would."""
        assert trainer.optimizer is None, "the optimizer was made already, with the rate it has"
        trainer.args.learning_rate *= self.factor

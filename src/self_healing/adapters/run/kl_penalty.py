"""The weight of the KL penalty of trainers that read it at every step or at every generation."""

from __future__ import annotations

from typing import Any

from ...core.errors import ActionFailed
from ..family import family_of
from ..wrapping import Wrapping


class KlPenalty:
    """Raises the weight (`beta`) of a trainer, and sets it back."""

    def __init__(self, trainer: Any, changes: Wrapping) -> None:
        self._trainer = trainer
        self._name = family_of(trainer).live_kl_weight
        self._changes = changes
        """Puts back at the end of the training what the user has set."""
        self._before: list[float] = []
        """What the weight was before each raise that is in force."""

    def scale(self, factor: float, *, least: float, most: float) -> float:
        """Multiply the weight, to the least at least and the most at most; a factor below 1 takes the last raise back. Return what it is now."""
        now = self._weight()
        if factor < 1.0:
            weight = self._before.pop() if self._before else now
        else:
            weight = min(max(now * factor, least), most)
            if weight <= now:
                raise ActionFailed(f"{self._name} is {now:g} already, and {most:g} is the most")
            self._before.append(now)
        self._changes.replace(self._trainer, self._name, weight)
        return weight

    def _weight(self) -> float:
        trainer = self._trainer
        beta = getattr(trainer, self._name, None) if self._name else None
        if not isinstance(beta, int | float):
            raise ActionFailed(f"{type(trainer).__name__} does not read a weight of the KL penalty while it trains")
        if getattr(trainer, "use_liger_loss", False):  # of older versions: the fused loss has taken its own copy
            raise ActionFailed("the fused loss of this trainer has taken beta when it was made")
        if not beta:
            raise ActionFailed("beta is 0: the trainer has no reference that a penalty could hold the policy to")
        return float(beta)

"""What all ranks of a run can do alike in the middle of training, without returning anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALIKE = (
    "scale_learning_rate", "rewarm_learning_rate", "tighten_clipping", "raise_kl_penalty", "clear_cache", "save_checkpoint",
    "alert", "stop_run",
)  # fmt: skip
"""These change the same thing in the same way everywhere. What enters the training anew, or depends on what one rank has on
its disk or in its batch, is left out."""


class SharedAbilities:
    """A part of what a trainer can do: a capability is offered by having its method."""

    def __init__(self, abilities: Any) -> None:
        self._abilities = abilities
        for name in ALIKE:
            method = getattr(abilities, name, None)
            if method is not None:
                setattr(self, name, method)

    @property
    def alerted_by(self) -> Callable[[], str] | None:
        """Who tells a person, where somebody does."""
        described: Callable[[], str] | None = self._abilities.alerted_by
        return described

    @alerted_by.setter
    def alerted_by(self, described: Callable[[], str] | None) -> None:
        self._abilities.alerted_by = described

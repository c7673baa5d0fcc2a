"""What all ranks of a run can do alike in the middle of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.capability import ReturnAsked
from ...core.errors import ActionFailed
from ..run.abilities import LoopAbilities
from ..run.moves import ReturnTo

if TYPE_CHECKING:
    from ..rollback.state_keeper import StateKeeper

ALIKE = (
    "scale_learning_rate", "rewarm_learning_rate", "tighten_clipping", "raise_kl_penalty", "clear_cache", "alert", "stop_run",
)  # fmt: skip
"""These change the same thing in the same way everywhere. What enters the training anew, or depends on what one rank has on
its disk or in its batch, is left out."""


class SharedAbilities:
    """A part of what a trainer can do: a capability is offered by having its method."""

    def __init__(self, abilities: Any, keeper: StateKeeper | None = None) -> None:
        self._abilities = abilities
        if hasattr(abilities, "save_checkpoint"):
            self.save_checkpoint = self._save_checkpoint
        if keeper is not None:
            self._keeper = keeper
            self.roll_back, self.skip_batches = self._roll_back, abilities.skip_batches
        for name in ALIKE:
            method = getattr(abilities, name, None)
            if method is not None:
                setattr(self, name, method)

    def _save_checkpoint(self) -> str:
        """Ask for a checkpoint of this step, which all write together: what has proved itself is each rank's own opinion."""
        return LoopAbilities.save_checkpoint(self._abilities)

    def _roll_back(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Ask for a return to a state that every rank holds in memory."""
        chosen = self._keeper.choose(before_step=before_step, depth=depth, min_steps=min_steps)
        if chosen is None:
            raise ActionFailed("the ranks hold no state in common that could be returned to")
        self._abilities.pending.ask(ReturnTo(chosen.key, onset=before_step))
        return ReturnAsked(chosen.key, chosen.step)

    @property
    def alerted_by(self) -> Callable[[], str] | None:
        """Who tells a person, where somebody does."""
        described: Callable[[], str] | None = self._abilities.alerted_by
        return described

    @alerted_by.setter
    def alerted_by(self, described: Callable[[], str] | None) -> None:
        self._abilities.alerted_by = described

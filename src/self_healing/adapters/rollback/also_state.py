"""What a user has said to be part of every state besides the model and its optimizer: an average of weights, a sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tensors.copies import Copies


class AlsoState:
    """All of it at one moment, by each thing's own `state_dict`."""

    def __init__(self, things: tuple[Any, ...], copies: Copies) -> None:
        from ...tensors.state import keep

        self._things = things
        self._copies = copies
        self._kept = [keep(thing.state_dict(), copies, f"also.{number}") for number, thing in enumerate(things)]

    def values(self) -> list[Any]:
        """Return it with tensors kept."""
        return self._kept

    def restore(self) -> None:
        """Have each thing load what it had."""
        from ...tensors.state import give_back

        self._copies.before_restore()
        for thing, kept in zip(self._things, self._kept, strict=True):
            thing.load_state_dict(give_back(kept))

"""The loss of the first step after each state: after a return it must be the same again, or the state is not what it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from ...snapshots.verdicts import SavedState
from ..run.moves import ReturnTo

FLOOR_OF_DIFFERENCE = 1e-3
"""Relative difference between a loss and the same loss after a return that is put down to the device."""


class FirstLosses:
    """Compares losses after returns, until they are seen not to repeat."""

    def __init__(self, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._losses: dict[str, float] = {}
        self._returned_to: SavedState | None = None
        """Where the run has just returned to, until the first step from there has shown its loss."""
        self._onset: int | None = None
        self._compares = True
        self._has_rejected = False

    def begin(self) -> None:
        """Forget all of them."""
        self._losses.clear()
        self._returned_to = None

    def returned(self, to: SavedState | None, *, onset: int | None = None) -> None:
        """Wait for the first loss after a return; None where it cannot be the same, because other data follow.

        Args:
            to: The state that was returned to.
            onset: The first step that may have been harmed, where that was the reason.

        """
        self._returned_to, self._onset = to, onset

    def rejects(
        self, step: int, loss: float, states: Iterable[SavedState], older_than: Callable[[str], str | None]
    ) -> ReturnTo | None:
        """Take note of a loss; ask for an older state, where there is one, if the first loss after a return is another one."""
        state = self._returned_to if self._compares else None
        if state is None or step != state.step + 1:
            self._losses.update({each.key: loss for each in states if each.step == step - 1})
            return None
        self._returned_to = None
        before = self._losses.get(state.key, math.nan)
        if not (math.isfinite(before) and math.isfinite(loss)):
            return None  # what is not finite has its own rules
        was_harmed = self._onset is not None and step >= self._onset and loss < before
        if was_harmed or math.isclose(loss, before, rel_tol=FLOOR_OF_DIFFERENCE):
            self._has_rejected = False
            return None
        told = (
            f"after the return to {state.key} the loss of step {step} was {loss:.6g}, and {before:.6g} the first time"
        )
        if self._has_rejected:
            self._compares = False
            self._note(
                "loss-does-not-repeat", f"{told}, as after the one before: this loss does not repeat, and says nothing"
            )
            return None
        self._has_rejected, older = True, older_than(state.key)
        then = "there is no older one: the run goes on from it" if older is None else "an older one is taken"
        self._note("state-rejected", f"{told}: this is not the state it should be, and {then}")
        return ReturnTo(state.key).instead(older, told) if older is not None else None

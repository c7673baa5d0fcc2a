"""`ORPOTrainer`, in `trl.experimental` by now: a mean over the tokens of chosen answers plus a mean over pairs."""

from __future__ import annotations

from typing import Any

from ..family import Family


class Orpo(Family):
    """Odds-ratio preferences, without a reference model."""

    handles = ("ORPOTrainer",)
    metric_lists = ("_stored_metrics",)
    counts = ("_stored_metrics",)

    def why_whole(self, trainer: Any) -> str | None:
        """Refuse: one weight per piece cannot suit both means."""
        return "ORPOTrainer adds a mean over tokens and a mean over pairs: no weight of a piece is right for both"

"""Buffers that are not finite by design: masks hold infinities, and code of a run may write them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .also_state import OF_ALSO

OF_THE_REFERENCE = "ref_model."
"""How the names of a reference model that follows the model begin."""


class OddBuffers:
    """Leaves those buffers out of the norms of states that were not finite when they were first seen."""

    def __init__(self, trainer: Any, note: Callable[[str, str], None]) -> None:
        self._trainer = trainer
        self._note = note
        self.left_alone: set[str] = set()
        self._seen: set[str] = set()
        """Everything that was ever in the norms of a state."""

    def begin(self) -> None:
        """Start anew, with what may be another model."""
        self.left_alone.clear()
        self._seen.clear()

    def without(self, norms: Mapping[str, float]) -> dict[str, float]:
        """Return the norms without those that are left alone; what is not finite when it is first seen is from now on."""
        odd = [name for name, norm in norms.items() if name not in self._seen and not math.isfinite(norm)]
        self.left_alone.update(self.among(odd))
        self._seen.update(norms)
        return {name: norm for name, norm in norms.items() if name not in self.left_alone}

    def among(self, names: Iterable[str]) -> list[str]:
        """Return which names are those of buffers, or of what else belongs to a state: a best figure so far may be infinite."""
        asked = list(names)
        if not asked:  # as usual: the buffers of a large model need not be listed
            return []
        buffers = {name for name, _ in self._trainer.model.named_buffers(remove_duplicate=False)}
        return [name for name in asked if name.startswith(OF_ALSO) or name.removeprefix(OF_THE_REFERENCE) in buffers]

    def accept(self, names: Iterable[str]) -> None:
        """Leave buffers alone that ceased to be finite in the same step again: code, and no glitch."""
        told = sorted(names)
        self.left_alone.update(told)
        others = f" and {len(told) - 1} others" if len(told) > 1 else ""
        self._note(
            "buffers-not-finite",
            f"{told[0]}{others} ceased to be finite in the same step as the first time: code of this run makes them so, "
            "and whether they are finite is looked at no longer",
        )

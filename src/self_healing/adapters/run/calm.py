"""Tell in a microsecond whether the numbers of a step can wait to be taken in.

That takes four times as long in the middle of a step, when nothing that it needs is in the processor's caches, as right
after another one. Steps like those before them are therefore taken in together, any other at once, with all that wait
before it: a sudden trouble is found as early as ever, and one that builds up slowly at most seven steps later.
"""

from __future__ import annotations

import math
from collections import deque

TOGETHER = 8
"""Steps that are taken in together where all of them are usual."""
MEMORY = 16
"""A step is usual where nothing of it is above all of so many before it, ..."""
MARGIN = 0.25
"""... by more than this share of their range: of usual steps that is said of 3 in 100."""


class Calm:
    """The newest losses and norms of a run."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=MEMORY)
        self._norms: deque[float] = deque(maxlen=MEMORY)

    def is_usual(self, loss: float, norm: float) -> bool:
        """Say whether the numbers of a step are like those before it; the first ones never are, nor is what is not finite."""
        losses, norms = self._losses, self._norms
        usual = len(losses) == MEMORY and 0.0 != loss <= _limit(losses) and 0.0 != norm <= _limit(norms)
        if usual or (math.isfinite(loss) and math.isfinite(norm)):
            losses.append(loss)
            norms.append(norm)
        return usual


def _limit(values: deque[float]) -> float:
    largest = max(values)
    return largest + MARGIN * (largest - min(values))

"""The plain memory of one metric: its last values, what waits outside the baseline, and counters."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

MOST_WITHHELD = 256
"""Samples of one metric that wait for the end of an incident; older ones are dropped."""


@dataclass(slots=True)
class Series:
    """The plain memory of one metric."""

    admitted: deque[float]
    steps: deque[int]
    """Steps of the newest finite values, admitted or not."""
    withheld: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WITHHELD))
    latest: float | None = None
    count: int = 0
    finite: int = 0
    nonfinite: int = 0
    nonfinite_run: int = 0

    def state(self) -> dict[str, object]:
        """Return the fields as JSON values; a latest value that is not finite as its name."""
        latest = self.latest if self.latest is None or math.isfinite(self.latest) else str(self.latest)
        return {
            "admitted": list(self.admitted),
            "steps": list(self.steps),
            "withheld": list(self.withheld),
            "latest": latest,
            "count": self.count,
            "finite": self.finite,
            "nonfinite": self.nonfinite,
            "nonfinite_run": self.nonfinite_run,
        }

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over the fields written by `state`."""
        for name in ("admitted", "steps", "withheld"):
            values = state[name]
            if not isinstance(values, list):
                msg = f"{name!r} of a series must be a list"
                raise ValueError(msg)  # noqa: TRY004  # the file is wrong, not the call
            getattr(self, name).extend(values)
        latest = state["latest"]
        self.latest = float(latest) if isinstance(latest, (int, float, str)) else None
        for name in ("count", "finite", "nonfinite", "nonfinite_run"):
            setattr(self, name, state[name])

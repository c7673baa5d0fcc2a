"""A learning rate that is cut and ramps back, multiplied into the schedule's rate for the moment of the update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...core.errors import ActionFailed

FLOOR = 1.0 / 16.0
"""The multiplier never falls below this where the user names no smallest rate."""
MOST = 5.0
"""Nor does it rise above this: a rate that is further off is for a person to set."""


def rates_of(groups: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the learning rate of each group; 0 where it has none because the optimizer computes its own."""
    return [0.0 if group["lr"] is None else float(group["lr"]) for group in groups]


@dataclass(slots=True)
class Ramp:
    """A cut that goes away linearly over a number of updates."""

    factor: float
    steps: int
    done: int = 0

    def value(self) -> float:
        """Return the multiplier now."""
        return self.factor + (1.0 - self.factor) * min(1.0, self.done / self.steps)


@dataclass(slots=True)
class LearningRateScale:
    """What the schedule's learning rate is multiplied by; every scheduler keeps its own state and shape."""

    kept: float = 1.0
    ramps: list[Ramp] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The multiplier of the next update."""
        return self.kept * math.prod(ramp.value() for ramp in self.ramps)

    def scale(self, factor: float, *, rate: float, floor: float | None) -> float:
        """Multiply for good, down to the floor and up to the most at most; return the resulting rate."""
        was_cut = self.kept < 1.0
        if not was_cut and self.kept * factor > MOST * (1.0 + 1e-9):
            raise ActionFailed(f"the rate is {self.kept:g} times that of the schedule, and {MOST:g} times is the most")
        if self.kept > 1.0 > factor:  # taking a raise back is no cut: no floor stands against it
            taken_back = max(factor, 1.0 / self.kept)
            self.kept *= taken_back
            factor /= taken_back
        self.kept *= self._allowed(factor, rate, floor)
        if was_cut and factor > 1.0:  # taking a cut back ends at the schedule's own rate, also if the cut met its floor
            self.kept = min(self.kept, 1.0)
        return rate * self.value

    def rewarm(self, factor: float, steps: int, *, rate: float, floor: float | None) -> float:
        """Multiply and ramp back over so many updates, or end the ramp where it is to start at 1; return the resulting rate.

        A second cut during a ramp starts from where the rate stands, and everything goes back over its own updates.
        """
        stood = math.prod(ramp.value() for ramp in self.ramps)
        if factor >= 1.0:
            for ramp in self.ramps:
                ramp.factor = 1.0  # a return to a state that knows this ramp must not bring the cut back
            self.ramps = []
        else:
            self.ramps = [Ramp(stood * self._allowed(factor, rate, floor), steps)]
        return rate * self.value

    def _allowed(self, factor: float, rate: float, floor: float | None) -> float:
        if factor >= 1.0 or rate <= 0.0:
            return factor
        lowest = (floor / rate if floor is not None else FLOOR) / max(self.value, 1e-12)
        return max(factor, min(1.0, lowest))

    @contextmanager
    def applied(self, groups: list[dict[str, Any]]) -> Iterator[None]:
        """Multiply the groups' rates for one update and put the schedule's own back afterwards."""
        scale = self.value
        before = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = None if group["lr"] is None else group["lr"] * scale
        try:
            yield
        finally:
            for group, rate in zip(groups, before, strict=True):
                group["lr"] = rate
            for ramp in self.ramps:
                ramp.done += 1
            self.ramps = [ramp for ramp in self.ramps if ramp.done < ramp.steps]

"""The rules others use, as small as they are described: what `detectors.py` is measured beside."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol


class Rival(Protocol):
    """Something that looks at one number after another."""

    name: str

    def see(self, x: float) -> bool:
        """Say whether this observation raises an alarm."""


class TimesMean:
    """The seed's spike rule: more than five times the running mean of a window."""

    name = "5x mean"

    def __init__(self, factor: float = 5.0, window: int = 50) -> None:
        self.factor = factor
        self.values: deque[float] = deque(maxlen=window)
        self.total = 0.0

    def see(self, x: float) -> bool:
        """Compare with the mean of the values before."""
        n = len(self.values)
        alarm = n >= 10 and x > self.factor * self.total / n
        if n == self.values.maxlen:
            self.total -= self.values[0]
        self.values.append(x)
        self.total += x
        return alarm


class RisingInARow:
    """The seed's divergence rule: so many rises in a row."""

    def __init__(self, needed: int) -> None:
        self.name = f"{needed} rising"
        self.needed = needed
        self.run = 0
        self.before = math.inf

    def see(self, x: float) -> bool:
        """Count, and start again at the first fall."""
        self.run = self.run + 1 if x > self.before else 0
        self.before = x
        return self.run >= self.needed


class ZClip:
    """ZClip's test: z above 2.5 against exponential averages with weight 0.97, clipped values fed back."""

    name = "ZClip 2.5"

    def __init__(self, limit: float = 2.5, weight: float = 0.97, warm_up: int = 25) -> None:
        self.limit, self.weight, self.warm_up = limit, weight, warm_up
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def see(self, x: float) -> bool:
        """Compare, then feed the value back, shortened as ZClip would."""
        if len(self.first) < self.warm_up:
            self.first.append(x)
            self.mean = sum(self.first) / len(self.first)
            self.variance = sum((v - self.mean) ** 2 for v in self.first) / len(self.first)
            return False
        deviation = math.sqrt(self.variance) + 1e-6
        z = (x - self.mean) / deviation
        alarm = z > self.limit
        if alarm:
            x = self.mean + self.limit**2 / z * deviation
        self.mean = self.weight * self.mean + (1 - self.weight) * x
        self.variance = self.weight * self.variance + (1 - self.weight) * (x - self.mean) ** 2
        return alarm


class SixSigma:
    """OLMo-core's test: six standard deviations above the mean of the last 128."""

    name = "6 sigma/128"

    def __init__(self, limit: float = 6.0, window: int = 128) -> None:
        self.limit = limit
        self.values: deque[float] = deque(maxlen=window)
        self.total = self.squares = 0.0

    def see(self, x: float) -> bool:
        """Compare with the window before, outliers in it included."""
        n = len(self.values)
        alarm = False
        if n >= 64:
            mean = self.total / n
            variance = max(0.0, self.squares / n - mean * mean)
            alarm = x > mean + self.limit * math.sqrt(variance)
        if n == self.values.maxlen:
            old = self.values[0]
            self.total -= old
            self.squares -= old * old
        self.values.append(x)
        self.total += x
        self.squares += x * x
        return alarm


def all_rivals() -> list[Rival]:
    """Return a fresh set."""
    return [TimesMean(), RisingInARow(10), RisingInARow(50), ZClip(), SixSigma()]

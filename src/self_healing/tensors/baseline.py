"""What is normal for the gradient norm, and what stands out from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

READY = 16
"""Norms after which outliers are told from the rest."""

NEW_NORMAL_AFTER = 3
"""Outliers in a row that are taken for a lasting change."""

Z = 6.0
RATIO = 2.0
CERTAIN_RATIO = 10.0
"""An outlier is above `Z` and `RATIO` times the typical norm, or above `CERTAIN_RATIO` times it whatever the noise."""

CLIP_Z = 3.5
"""The farther above this an outlier is, the closer to the typical norm it is brought."""

WINSOR = 3.0
"""Scales that one norm may pull the location or the scale by."""

LOCATION_RATE, SCALE_RATE = 1.0 / 32.0, 1.0 / 128.0
"""What a norm counts for in the long run."""

LOCATION_POWER = -0.7
"""Early on the rate of the location is this power of the number of norms: less than a mean remembers, so as to follow
the fall of a young run."""

LARGEST_COUNT = 4096.0
"""The count goes far beyond where it matters, and no further than where single precision can count."""

ASSUMED_SCALE, ASSUMED_WEIGHT = 0.5, 8.0
"""What the scale is taken for at first, and the number of norms it counts for: no noise of usual training is wider."""

SMALLEST_SCALE = 0.05
"""Below it the factor `RATIO` decides alone; it also lets the location follow norms that hardly vary."""

LARGEST_EXPONENT = 700.0
"""Beyond it there is no number for the typical norm of a run in double precision that is about to overflow."""

MEAN_ABS_TO_SIGMA = math.sqrt(math.pi / 2.0)


class Judgement(NamedTuple):
    """What is to be said about one norm."""

    share: float
    """What brings an outlier down; one for every other norm."""
    z: float
    """Distance of the norm's logarithm from its level in scales; zero until the baseline is ready."""
    is_finite: bool
    is_outlier: bool
    typical: float
    """Norm it was compared with; zero until the baseline is ready."""


@dataclass(slots=True)
class LogNormBaseline:
    """Where the logarithm of the gradient norm usually is, and how far it strays.

    * *location*: winsorised exponential average of the logarithm.
    * *drift*: average distance of the norms from it, which is how far it lags behind a trend. A rising trend moves
      the level up by it; a falling one does not move it down, since a lag is then only careful, and a norm that
      stops falling must not look like one that jumps.
    * *scale*: average absolute distance from the location with the drift taken off. First differences would be blind
      to trends too, but they miss most of the noise of an autocorrelated norm (two thirds of it at a correlation of
      0.9) and would call its slow swings outliers.

    What is farther off than an outlier, on either side, waits outside; when `NEW_NORMAL_AFTER` have come in a row,
    their median becomes the location.

    Plain numbers, for a norm that the host has. Where it would have to wait for them, the same is done by a kernel on
    the device (see `fused`); this is what that one is compared with.
    """

    location: float = 0.0
    drift: float = 0.0
    scale: float = ASSUMED_SCALE
    count: float = 0.0
    streak: float = 0.0
    """Strange norms in a row, which have not entered."""
    newest: float = 0.0
    before: float = 0.0
    """The logarithms of the last two of them."""

    def numbers(self) -> list[float]:
        """Return the state, in the order of the fields."""
        return [getattr(self, item.name) for item in fields(self)]

    @classmethod
    def of(cls, numbers: Sequence[float]) -> LogNormBaseline:
        """Continue from a state."""
        expected = len(fields(cls))
        if len(numbers) != expected:
            raise ValueError(f"a baseline has {expected} numbers, not {len(numbers)}")
        return cls(*numbers)

    def judge(self, norm: float, *, learns: bool = True) -> Judgement:
        """Judge a norm and learn from it, unless it is to be judged again."""
        is_finite = math.isfinite(norm)
        is_ready = self.count >= READY
        level = self.location + max(self.drift, 0.0)
        typical = math.exp(min(level, LARGEST_EXPONENT)) if is_ready else 0.0
        if not is_finite or norm <= 0.0:  # a norm of zero is finite, but says nothing about what is normal
            return Judgement(1.0, 0.0, is_finite, is_outlier=False, typical=typical)
        x = math.log(norm)
        distance = x - level
        z = distance / self.scale if is_ready else 0.0
        least = min(max(Z * self.scale, math.log(RATIO)), math.log(CERTAIN_RATIO))
        is_strange = is_ready and abs(distance) > least
        is_outlier = is_strange and distance > 0.0
        share = min(1.0, math.exp(CLIP_Z * CLIP_Z * self.scale / z - distance)) if is_outlier else 1.0
        if learns and is_strange:
            self._keep_waiting(x)
        elif learns:
            self._learn(x)
        return Judgement(share, z, is_finite, is_outlier, typical)

    def _learn(self, x: float) -> None:
        distance = 0.0 if self.count < 1.0 else x - self.location
        reach = WINSOR * self.scale
        pull = min(max(distance, -reach), reach)
        spread = min(abs(distance - self.drift), reach) * MEAN_ABS_TO_SIGMA
        rate = max((self.count + 1.0) ** LOCATION_POWER, LOCATION_RATE)
        slow = max(1.0 / (self.count + ASSUMED_WEIGHT), SCALE_RATE)
        self.location = x - distance + rate * pull
        self.drift += rate * (pull - self.drift)
        self.scale = max(self.scale + slow * (spread - self.scale), SMALLEST_SCALE)
        self.count = min(self.count + 1.0, LARGEST_COUNT)
        self.streak = 0.0

    def _keep_waiting(self, x: float) -> None:
        """Take note of a strange norm; the third in a row moves the location to the median of the three."""
        middle = min(max(x, min(self.newest, self.before)), max(self.newest, self.before))
        self.newest, self.before = x, self.newest
        self.streak += 1.0
        if self.streak >= NEW_NORMAL_AFTER:  # two that agree outvote one that happened to be extreme
            self.location, self.drift, self.count, self.streak = middle, 0.0, float(READY), 0.0


def constants() -> dict[str, float]:
    """Return the numbers the kernels are written with."""
    return {
        "READY": READY,
        "NEW_NORMAL_AFTER": NEW_NORMAL_AFTER,
        "Z": Z,
        "LOG_RATIO": math.log(RATIO),
        "LOG_CERTAIN_RATIO": math.log(CERTAIN_RATIO),
        "CLIP_Z": CLIP_Z,
        "WINSOR": WINSOR,
        "LOCATION_RATE": LOCATION_RATE,
        "LOCATION_POWER": LOCATION_POWER,
        "SCALE_RATE": SCALE_RATE,
        "ASSUMED_WEIGHT": ASSUMED_WEIGHT,
        "SMALLEST_SCALE": SMALLEST_SCALE,
        "LARGEST_COUNT": LARGEST_COUNT,
        "MEAN_ABS_TO_SIGMA": MEAN_ABS_TO_SIGMA,
    }

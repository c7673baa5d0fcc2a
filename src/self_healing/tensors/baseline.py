"""What is normal for the gradient norm, learned and applied on the device."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

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

MEAN_ABS_TO_SIGMA = math.sqrt(math.pi / 2.0)


class Judgement(NamedTuple):
    """What is to be said about one norm, as 0-dimensional tensors."""

    coefficient: Tensor
    """What the gradients are to be multiplied by."""
    z: Tensor
    """Distance of the norm's logarithm from its level in scales; zero until the baseline is ready."""
    found_inf: Tensor
    """One where the norm is not finite."""
    is_outlier: Tensor
    typical: Tensor
    """Norm it was compared with; zero until the baseline is ready."""


class LogNormBaseline:
    """Where the logarithm of the gradient norm usually is, and how far it strays, as device scalars.

    * *location*: winsorised exponential average of the logarithm.
    * *drift*: average distance of the norms from it, which is how far it lags behind a trend. A rising trend moves
      the level up by it; a falling one does not move it down, since a lag is then only careful, and a norm that
      stops falling must not look like one that jumps.
    * *scale*: average absolute distance from the location with the drift taken off. First differences would be blind
      to trends too, but they miss most of the noise of an autocorrelated norm (two thirds of it at a correlation of
      0.9) and would call its slow swings outliers.

    What is farther off than an outlier, on either side, waits outside; when `NEW_NORMAL_AFTER` have come in a row,
    their median becomes the location.

    These are some sixty small operations; on CUDA one kernel takes their place (see `fused`).
    """

    FIELDS = ("location", "drift", "scale", "count", "strange", "newest", "before")

    def __init__(self) -> None:
        self._vector = torch.tensor([0.0, 0.0, ASSUMED_SCALE, 0.0, 0.0, 0.0, 0.0])
        self._parts: tuple[Tensor, ...] = self._vector.unbind()
        # Made once: a number that goes to the device in every step would be waited for.
        self._zero, self._one, self._ready = torch.zeros(()), torch.ones(()), torch.tensor(float(READY))
        self._offset = torch.tensor([1.0, 1.0, ASSUMED_WEIGHT, 1.0, 1.0, 1.0, 1.0])
        self._power = torch.tensor([LOCATION_POWER, LOCATION_POWER, -1.0, 0.0, 0.0, 0.0, 0.0])
        self._least = torch.tensor([LOCATION_RATE, LOCATION_RATE, SCALE_RATE, 0.0, 0.0, 0.0, 0.0])
        anything = torch.inf
        self._lowest = torch.tensor([-anything, -anything, SMALLEST_SCALE, 0.0, 0.0, -anything, -anything])
        self._highest = torch.tensor([anything, anything, anything, LARGEST_COUNT, anything, anything, anything])

    @property
    def state(self) -> Tensor:
        """The numbers named in `FIELDS`, as one vector."""
        return self._vector

    @state.setter
    def state(self, vector: Tensor) -> None:
        self._vector, self._parts = vector, vector.unbind()

    @property
    def device(self) -> torch.device:
        """Where the state lies."""
        return self._parts[0].device

    def to(self, device: torch.device) -> None:
        """Move to a device, if not there already."""
        if self.device != device:
            for name in ("state", "_zero", "_one", "_ready", "_offset", "_power", "_least", "_lowest", "_highest"):
                setattr(self, name, getattr(self, name).to(device))

    def load(self, state: Tensor) -> None:
        """Continue from a copy of `state`."""
        if state.shape != (len(self.FIELDS),):
            raise ValueError(f"a baseline has {len(self.FIELDS)} numbers, not {tuple(state.shape)}")
        self.state = state.detach().to(self.device, torch.float32, copy=True)

    def judge(self, norm: Tensor, limit: Tensor, *, clip: bool) -> Judgement:
        """Judge a norm and learn from it; `limit` is the coefficient that applies to it in any case.

        With `clip`, an outlier's coefficient goes down to what brings it to exp(level + CLIP_Z^2 scale / z). One that
        is not finite gets the coefficient one.
        """
        x = norm.log()
        level, usable, distance, z, strange = self.compare(x)
        outlier = strange & (distance > 0.0)
        finite = norm < torch.inf
        if clip:
            share = torch.addcdiv(-distance, self._parts[2], z, value=CLIP_Z * CLIP_Z).exp()
            limit = torch.where(outlier, torch.minimum(limit, share.to(limit.dtype)), limit)
        judgement = Judgement(
            torch.where(finite, limit, self._one.to(limit.dtype)),
            z,
            torch.where(finite, self._zero, self._one),
            outlier.to(torch.float32),
            torch.where(self._parts[3] >= READY, level.exp(), self._zero),
        )
        self.learn(x, usable, strange)
        return judgement

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the level, and of a logarithm whether it says anything, its distance, its z, if it is strange."""
        location, drift, scale, count = self._parts[:4]
        level = location + drift.clamp(min=0.0)
        # A norm of zero has no logarithm: it is finite, but says nothing about what is normal.
        usable = x.abs() < torch.inf
        known = usable & (count >= READY)
        distance = x - level
        z = torch.where(known, distance / scale, self._zero)
        least = (Z * scale).clamp(math.log(RATIO), math.log(CERTAIN_RATIO))
        return level, usable, distance, z, known & (distance.abs() > least)

    def learn(self, x: Tensor, usable: Tensor, strange: Tensor) -> None:
        """Take in a logarithm, unless it is not `usable`; a `strange` one only when it is the third in a row."""
        location, drift, scale, count, streak, newest, before = self._parts
        distance = torch.where(count < 1.0, self._zero, x - location)
        reach = WINSOR * scale
        pull = torch.clamp(distance, -reach, reach)
        spread = torch.minimum((distance - drift).abs(), reach) * MEAN_ABS_TO_SIGMA
        goal = torch.stack((x - distance + pull, pull, spread, count + 1.0, self._zero, newest, before))
        # The rate of the last four is one: they are replaced.
        rates = torch.maximum((count + self._offset).pow(self._power), self._least)
        entered = torch.clamp(torch.lerp(self.state, goal, rates), self._lowest, self._highest)
        waiting = torch.stack((location, drift, scale, count, streak + 1.0, x, newest))
        # The median of the three: two that agree outvote one that happened to be extreme.
        middle = torch.clamp(x, torch.minimum(newest, before), torch.maximum(newest, before))
        moved = torch.stack((middle, self._zero, scale, self._ready, self._zero, x, newest))
        kept = torch.where(streak >= NEW_NORMAL_AFTER - 1, moved, waiting)
        self.state = torch.where(usable, torch.where(strange, kept, entered), self.state)


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

"""One look at the gradients per optimizer step: is it finite, is it an outlier, what is it clipped to.

Everything is decided on the device. `judge` measures the gradients, compares the logarithm of their norm with that of
the run's own recent past, clips them, and leaves the decisions in tensors: `found_inf` for a fused optimizer and
`telemetry` for a host that reads it later. A healthy step is clipped exactly as torch would clip it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .adagc import AdaGC
from .norms import Norms, clip_coefficient
from .zclip import ZClip

TELEMETRY = ("norm", "coefficient", "z", "found_inf", "is_outlier", "typical")
"""What the elements of `GradientGate.telemetry()` are, in this order."""

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
"""What a norm counts for in the long run; early ones count for more."""

ASSUMED_SCALE, ASSUMED_WEIGHT = 0.5, 8.0
"""What the scale is taken for at first, and the number of norms it counts for: no noise of usual training is wider."""

SMALLEST_SCALE = 0.05
"""Below it the factor `RATIO` decides alone; it also lets the location follow norms that hardly vary."""

MEAN_ABS_TO_SIGMA = math.sqrt(math.pi / 2.0)


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
    """

    FIELDS = ("location", "drift", "scale", "count", "strange", "newest", "before")

    def __init__(self) -> None:
        self.state = torch.tensor([0.0, 0.0, ASSUMED_SCALE, 0.0, 0.0, 0.0, 0.0])
        # Made once: a number that goes to the device in every step would be waited for.
        self._zero, self._ready = torch.zeros(()), torch.tensor(float(READY))
        self._offset = torch.tensor([1.0, 1.0, ASSUMED_WEIGHT, 1.0, 1.0, 1.0, 1.0])
        self._power = torch.tensor([-0.7, -0.7, -1.0, 0.0, 0.0, 0.0, 0.0])
        self._least = torch.tensor([LOCATION_RATE, LOCATION_RATE, SCALE_RATE, 0.0, 0.0, 0.0, 0.0])
        anything = torch.inf
        self._lowest = torch.tensor([-anything, -anything, SMALLEST_SCALE, 0.0, 0.0, -anything, -anything])
        # The count goes far beyond where it matters, and no further than where single precision can count.
        self._highest = torch.tensor([anything, anything, anything, 4096.0, anything, anything, anything])
        self._read()

    def to(self, device: torch.device) -> None:
        """Move to a device, if not there already."""
        if self.state.device != device:
            for name in ("state", "_zero", "_ready", "_offset", "_power", "_least", "_lowest", "_highest"):
                setattr(self, name, getattr(self, name).to(device))
            self._read()

    def load(self, state: Tensor) -> None:
        """Continue from a copy of `state`."""
        if state.shape != self.state.shape:
            raise ValueError(f"a baseline has {len(self.FIELDS)} numbers, not {tuple(state.shape)}")
        self.state = state.detach().to(self.state.device, torch.float32, copy=True)
        self._read()

    def _read(self) -> None:
        location, drift, self.scale, count = self.state[:4].unbind()
        self.level = location + drift.clamp(min=0.0)
        """Logarithm of the typical norm."""
        self.limit = (Z * self.scale).clamp(math.log(RATIO), math.log(CERTAIN_RATIO))
        """Distance above the level from which on a norm is an outlier."""
        self.is_ready = count >= READY

    def compare(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return whether a logarithm says anything, its distance from the level, its z, and whether it is strange."""
        # A norm of zero has no logarithm: it is finite, but says nothing about what is normal.
        usable = x.abs() < torch.inf
        known = usable & self.is_ready
        distance = x - self.level
        z = torch.where(known, distance / self.scale, self._zero)
        return usable, distance, z, known & (distance.abs() > self.limit)

    def learn(self, x: Tensor, usable: Tensor, strange: Tensor) -> None:
        """Take in a logarithm, unless it is not `usable`; a `strange` one only when it is the third in a row."""
        location, drift, scale, count, streak, newest, before = self.state.unbind()
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
        self._read()


class GradientGate:
    """Measures, judges and clips the gradients of one optimizer step without waiting for the device.

    By default only outliers are clipped beyond `max_norm`. `clip_outliers=False` merely measures them. `always` clips
    every step as ZClip does, `per_tensor` as AdaGC does; `max_norm` then remains a limit on top of theirs.
    """

    def __init__(
        self,
        *,
        clip_outliers: bool = True,
        always: ZClip | None = None,
        per_tensor: AdaGC | None = None,
    ) -> None:
        if always is not None and per_tensor is not None:
            raise ValueError("ZClip clips all tensors alike and AdaGC each by itself: choose one of them")
        self.clip_outliers = clip_outliers
        self.always = always
        self.per_tensor = per_tensor
        self.baseline = LogNormBaseline()
        self.norm = torch.zeros(())
        """Norm of the newest gradients before clipping."""
        self.coefficient = torch.ones(())
        """What they were multiplied by; for AdaGC the ratio of the norms afterwards and before."""
        self.z = torch.zeros(())
        """Distance of the norm's logarithm from its level in scales; zero until the baseline is ready."""
        self.found_inf = torch.zeros(())
        """One where the norm is not finite (or overflows single precision), as a fused optimizer wants it."""
        self.is_outlier = torch.zeros((), dtype=torch.bool)
        self._compared_with = self.baseline.level, self.baseline.is_ready
        self._zero, self._one = torch.zeros(()), torch.ones(())
        self._finite = torch.ones((), dtype=torch.bool)

    @torch.no_grad()
    def judge(self, grads: Sequence[Tensor | None], max_norm: float | None) -> Tensor:
        """Judge the gradients, clip them in place and return the norm they had.

        None stands for a parameter without a gradient; AdaGC tells the parameters apart by their place. No
        `max_norm`, or one of zero, means no constant limit. Gradients whose norm is not finite stay as they are.
        """
        norms = Norms([grad for grad in grads if grad is not None], self._one.device)
        norm = norms.total.to(torch.float32)
        self._move_to(norm.device)
        baseline = self.baseline
        x = norm.log()
        usable, distance, self.z, strange = baseline.compare(x)
        self.norm, self.is_outlier = norm, strange & (distance > 0.0)
        self._finite = norm < torch.inf
        self.found_inf = torch.where(self._finite, self._zero, self._one)
        self._compared_with = baseline.level, baseline.is_ready
        self.coefficient = self._clip(grads, norms, self._ceiling(norms, distance), max_norm or None)
        baseline.learn(x, usable, strange)
        return norm

    def _ceiling(self, norms: Norms, distance: Tensor) -> Tensor | None:
        """Return what the gradients are multiplied by at most, `max_norm` aside; None for no such limit."""
        if self.always is not None:
            return self.always.coefficient(norms.total)
        if self.per_tensor is not None or not self.clip_outliers:
            return None
        # Down to exp(level + CLIP_Z^2 scale / z), as a share of the norm.
        share = torch.addcdiv(-distance, self.baseline.scale, self.z, value=CLIP_Z * CLIP_Z).exp()
        return torch.where(self.is_outlier, share, self._one)

    def _clip(
        self, grads: Sequence[Tensor | None], norms: Norms, ceiling: Tensor | None, max_norm: float | None
    ) -> Tensor:
        """Scale the gradients and return what their norm was multiplied by."""
        if self.per_tensor is not None:
            each = self.per_tensor.coefficients(grads, norms)
            each = each * self._rest(each, norms, max_norm)
            norms.scale_each_(each)
            after: Tensor = torch.linalg.vector_norm(each * norms.each.to(torch.float32))
            return torch.where((self.norm > 0.0) & self._finite, after / self.norm, self._one)
        if max_norm is not None:
            coefficient = _as_torch_clips(norms, max_norm)
            if ceiling is not None:
                coefficient = torch.minimum(coefficient, ceiling.to(coefficient.dtype))
        elif ceiling is not None:
            coefficient = ceiling.to(norms.as_torch.dtype)
        else:
            return self._one
        coefficient = torch.where(self._finite, coefficient, self._one.to(coefficient.dtype))
        norms.scale_(coefficient)
        return coefficient.to(torch.float32)

    def _rest(self, each: Tensor, norms: Norms, max_norm: float | None) -> Tensor:
        """Return by how much gradients that are clipped one by one must shrink together to keep to `max_norm`."""
        if max_norm is None:
            return self._one
        together: Tensor = torch.linalg.vector_norm(each * norms.each.to(torch.float32))
        return torch.where(self._finite, clip_coefficient(together, max_norm), self._one)

    @property
    def typical(self) -> Tensor:
        """Norm that the newest one was compared with; zero until the baseline is ready."""
        level, is_ready = self._compared_with
        return torch.where(is_ready, level.exp(), self._zero)

    @torch.no_grad()
    def telemetry(self) -> Tensor:
        """Return a new single-precision vector on the device; `TELEMETRY` names its elements."""
        outlier = self.is_outlier.to(torch.float32)
        return torch.stack((self.norm, self.coefficient, self.z, self.found_inf, outlier, self.typical))

    def state_dict(self) -> dict[str, object]:
        """Return copies of what has been learned, that of ZClip or AdaGC included."""
        state: dict[str, object] = {"baseline": self.baseline.state.clone()}
        if self.always is not None:
            state["always"] = self.always.state_dict()
        if self.per_tensor is not None:
            state["per_tensor"] = self.per_tensor.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue from what `state_dict` returned; a part that was not in use then starts anew."""
        baseline, always, per_tensor = state["baseline"], state.get("always"), state.get("per_tensor")
        if not isinstance(baseline, Tensor):
            raise TypeError("not a state of GradientGate: its baseline must be a tensor")
        self.baseline.load(baseline)
        if self.always is not None and isinstance(always, Mapping):
            self.always.load_state_dict(always)
        if self.per_tensor is not None and isinstance(per_tensor, Mapping):
            self.per_tensor.load_state_dict(per_tensor)

    def _move_to(self, device: torch.device) -> None:
        if self._one.device != device or self.baseline.state.device != device:
            self._zero, self._one = self._zero.to(device), self._one.to(device)
            self.baseline.to(device)


def _as_torch_clips(norms: Norms, max_norm: float) -> Tensor:
    """Return torch's own coefficient, with its rounding; where a half-precision norm overflows, the one it meant."""
    coefficient = clip_coefficient(norms.as_torch, max_norm)
    if norms.as_torch is norms.total:
        return coefficient
    meant = clip_coefficient(norms.total, max_norm).to(coefficient.dtype)
    return torch.where(norms.as_torch < torch.inf, coefficient, meant)

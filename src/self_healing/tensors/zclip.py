"""ZClip: clip the gradient norm where it stands out from its own recent past (arXiv 2504.02507).

The threshold follows an exponential average of norm and variance. The published code waits for the device once per
step, is switched off for good by one NaN, and makes NaN of every gradient at one Inf; here everything stays on the
device, and a norm that is not finite changes neither the gradients nor what has been learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from .fused import fused_or_none
from .fused_clipping import KEEPS_SPIKES_OUT, LIMITED, PERCENTILE, TO_MEAN, FusedZClip
from .norms import SMALLEST, Norms, parameters_of

Mode = Literal["zscore", "percentile"]
ClipOption = Literal["adaptive_scaling", "mean"]

SAVED = ("mean", "var", "count", "total_clips")


class ZClip:
    """Adaptive clipping by the z-score of the gradient norm; call `step` between backward and the optimizer."""

    def __init__(
        self,
        alpha: float = 0.97,
        z_threshold: float = 2.5,
        max_grad_norm: float | None = 1.0,
        *,
        mode: Mode = "zscore",
        clip_option: ClipOption = "adaptive_scaling",
        clip_factor: float = 1.0,
        warmup_steps: int = 25,
        skip_update_on_spike: bool = False,
        eps: float = 1e-6,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        if clip_option not in get_args(ClipOption):
            raise ValueError(f"clip_option must be one of {', '.join(get_args(ClipOption))}, not {clip_option!r}")
        if not 0.0 < alpha < 1.0:
            raise ValueError(f"alpha must lie between 0 and 1, not {alpha!r}")
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps must be at least 1, not {warmup_steps!r}")
        self.alpha = alpha
        self.z_threshold = z_threshold
        self.max_grad_norm = max_grad_norm
        """Constant limit beside the adaptive one, also during the warm-up; None for no such limit."""
        self.mode = mode
        self.clip_option = clip_option
        self.clip_factor = clip_factor
        self.warmup_steps = warmup_steps
        """Finite norms from which the first mean and variance are taken."""
        self.skip_update_on_spike = skip_update_on_spike
        self.eps = eps
        self.mean = torch.zeros((), dtype=torch.float64)
        self.var = torch.zeros((), dtype=torch.float64)
        self.count = torch.zeros((), dtype=torch.float64)
        """Finite norms seen, no further than the end of the warm-up."""
        self.total_clips = torch.zeros((), dtype=torch.float64)
        """Steps on which the adaptive threshold was exceeded; the constant limit does not count."""
        self.raw_norm = torch.zeros(())
        """Norm of the newest gradients, before clipping."""
        self._coefficient = torch.ones(())
        self._z = torch.zeros(())
        self._is_known = torch.zeros((), dtype=torch.bool)
        # Made once: a number that goes to the device in every step would be waited for.
        self._one, self._zero = torch.ones(()), torch.zeros(())
        self._rate = torch.tensor(1.0 - alpha, dtype=torch.float64)
        self.may_fuse = True
        """False keeps to ordinary operations also where a kernel could do the same."""
        self._fused: FusedZClip | None = None
        self._device: torch.device | None = None

    @property
    def clipped_norm(self) -> Tensor:
        """Norm of the newest gradients, after clipping."""
        return self.raw_norm * self._coefficient

    @property
    def z_score(self) -> Tensor:
        """The newest norm's z-score; zero during the warm-up and for a norm that is not finite."""
        return torch.where(self._is_known != 0, self._z, torch.zeros_like(self._z))

    @torch.no_grad()
    def step(self, source: torch.nn.Module | Tensor | Iterable[Tensor]) -> Tensor:
        """Clip the gradients of a model or of its parameters in place and return the norm they had before."""
        grads = [p.grad for p in parameters_of(source) if p.grad is not None]
        norms = Norms(grads, self.mean.device)
        norms.scale_(self.coefficient(norms.total))
        return norms.total

    def coefficient(self, norm: Tensor, held: Tensor | None = None) -> Tensor:
        """Learn from a norm and return what its gradients are to be multiplied by.

        Where `held` is not zero, nothing is learned: the update is left out and comes again with its make-up.
        """
        self._move_to(norm.device)
        held = self._zero if held is None else held
        if self._fused is not None and norm.dtype is torch.float32:
            result = self._fused.judge(norm, held, self._numbers(), self._flags())
            self.raw_norm, self._coefficient = norm, result
            return result
        g = norm.to(self.mean.dtype)
        finite = g < torch.inf
        warm = self.count >= self.warmup_steps
        std = self.var.sqrt()
        z = (g - self.mean) / (std + self.eps)
        threshold, exceeded = self._threshold(g, z, std)
        known = finite & warm
        spike = exceeded & known
        value = torch.where(spike, threshold, g)
        limit = value if self.max_grad_norm is None else value.clamp(max=self.max_grad_norm)
        limit = limit.to(norm.dtype)
        # Chosen, not multiplied with a zero or a one: zero times infinity is no number.
        result = torch.where(finite & (norm > limit), limit / (norm + SMALLEST), self._one)
        learns = finite & (held == 0)
        self._learn(value, learns & ~spike if self.skip_update_on_spike else learns, warm)
        self.raw_norm, self._coefficient, self._z, self._is_known = norm, result, z, known
        self.total_clips = self.total_clips + (spike & learns)
        return result

    def _numbers(self) -> list[float]:
        limit = self.max_grad_norm or 0.0
        rate = 1.0 - self.alpha
        return [rate, self.z_threshold, self.clip_factor, self.eps, limit, float(self.warmup_steps)]

    def _flags(self) -> int:
        return (
            PERCENTILE * (self.mode == "percentile")
            + TO_MEAN * (self.clip_option == "mean")
            + KEEPS_SPIKES_OUT * self.skip_update_on_spike
            + LIMITED * (self.max_grad_norm is not None)
        )

    def _threshold(self, g: Tensor, z: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Return the adaptive limit and whether the norm calls for it."""
        if self.mode == "percentile":
            threshold = self.mean + self.z_threshold * std
            return threshold, g > threshold
        exceeded = z > self.z_threshold
        if self.clip_option == "mean":
            return self.mean, exceeded
        # The farther out, the closer to the mean. The factor applies to the whole limit, as in the published code.
        return (self.mean + self.z_threshold * std / (z / self.z_threshold)) * self.clip_factor, exceeded

    def _learn(self, value: Tensor, learns: Tensor, warm: Tensor) -> None:
        seen = self.count + 1.0
        # A plain mean and variance of the warm-up, brought up to date one by one; exponential averages after it.
        rate = torch.where(warm, self._rate, seen.reciprocal())
        mean = torch.lerp(self.mean, value, rate)
        rest = value - mean
        # After the warm-up the distance from the new mean alone, not from the old one: so published.
        square = rest * torch.where(warm, rest, value - self.mean)
        self.var = torch.where(learns, torch.lerp(self.var, square, rate), self.var)
        self.mean = torch.where(learns, mean, self.mean)
        self.count = torch.where(learns, seen.clamp(max=self.warmup_steps), self.count)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of what has been learned."""
        return {name: getattr(self, name).clone() for name in SAVED}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state_dict` returned."""
        for name in SAVED:
            setattr(self, name, state[name].detach().to(self._rate.device, self._rate.dtype, copy=True))
        self._fused, self._device = None, None  # made again from what was loaded

    def __getstate__(self) -> dict[str, object]:
        # A kernel belongs to its process and its memory to one ZClip: a copy takes the numbers and makes its own.
        own = {name: getattr(self, name).clone() for name in (*SAVED, "_z", "_is_known", "_coefficient")}
        return {**self.__dict__, **own, "_fused": None, "_device": None}

    def _move_to(self, device: torch.device) -> None:
        if self._device == device:
            return
        # Double precision, so that a huge norm in the warm-up cannot overflow the variance; Metal has none.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._one, self._zero = self._one.to(device), self._zero.to(device)
        for name in (*SAVED, "_rate"):
            setattr(self, name, getattr(self, name).to(device, dtype))
        saved = [getattr(self, name) for name in SAVED]
        self._fused = fused_or_none(lambda: FusedZClip(saved), device) if self.may_fuse else None
        if self._fused is not None:  # from now on they are places in the kernel's memory
            for name, place in zip(SAVED, self._fused.saved, strict=True):
                setattr(self, name, place)
            self._z, self._is_known = self._fused.z, self._fused.is_known
        self._device = device

"""One look at the gradients per optimizer step: is it finite, is it an outlier, what is it clipped to.

Everything is decided on the device. `judge` measures the gradients, compares the logarithm of their norm with that of
the run's own recent past, clips them, and leaves the decisions in tensors: `found_inf` for a fused optimizer and
`telemetry` for a host that reads it later. A healthy step is clipped exactly as torch would clip it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .adagc import AdaGC
from .baseline import LogNormBaseline
from .norms import Norms, clip_coefficient
from .zclip import ZClip

TELEMETRY = ("norm", "coefficient", "z", "found_inf", "is_outlier", "typical")
"""What the elements of `GradientGate.telemetry()` are, in this order."""


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
        self.is_outlier = torch.zeros(())
        """One where the norm is finite and an outlier."""
        self.typical = torch.zeros(())
        """Norm that the newest one was compared with; zero until the baseline is ready."""
        self._one = torch.ones(())

    @torch.no_grad()
    def judge(self, grads: Sequence[Tensor | None], max_norm: float | None) -> Tensor:
        """Judge the gradients, clip them in place and return the norm they had.

        None stands for a parameter without a gradient; AdaGC tells the parameters apart by their place. No
        `max_norm`, or one of zero, means no constant limit. Gradients whose norm is not finite stay as they are.
        """
        norms = Norms([grad for grad in grads if grad is not None], self._one.device)
        norm = norms.total.to(torch.float32)
        self._move_to(norm.device)
        max_norm = max_norm or None
        clip = self.clip_outliers and self.always is None and self.per_tensor is None
        limit = self._limit(norms, max_norm)
        coefficient, self.z, self.found_inf, self.is_outlier, self.typical = self.baseline.judge(norm, limit, clip=clip)
        self.norm, self.coefficient = norm, coefficient.to(torch.float32)
        if self.per_tensor is not None:
            self.coefficient = self._clip_each(self.per_tensor, grads, norms, max_norm)
        elif clip or limit is not self._one:
            norms.scale_(coefficient)
        return norm

    def _limit(self, norms: Norms, max_norm: float | None) -> Tensor:
        """Return what the gradients are multiplied by if the norm is no outlier, in torch's own dtype."""
        if self.per_tensor is not None:
            return self._one
        limit = None if max_norm is None else _as_torch_clips(norms, max_norm)
        if self.always is not None:
            published = self.always.coefficient(norms.total).to(norms.as_torch.dtype)
            limit = published if limit is None else torch.minimum(limit, published)
        return self._one.to(norms.as_torch.dtype) if limit is None else limit

    def _clip_each(
        self, per_tensor: AdaGC, grads: Sequence[Tensor | None], norms: Norms, max_norm: float | None
    ) -> Tensor:
        """Scale each gradient by itself and return what their common norm was multiplied by."""
        before = norms.each.to(torch.float32)
        each = per_tensor.coefficients(grads, norms)
        after: Tensor = torch.linalg.vector_norm(each * before)
        finite = self.norm < torch.inf
        if max_norm is not None:
            rest = torch.where(finite, clip_coefficient(after, max_norm), self._one)
            each, after = each * rest, after * rest
        norms.scale_each_(each)
        return torch.where(finite & (self.norm > 0.0), after / self.norm, self._one)

    @torch.no_grad()
    def telemetry(self) -> Tensor:
        """Return a new single-precision vector on the device; `TELEMETRY` names its elements."""
        return torch.stack((self.norm, self.coefficient, self.z, self.found_inf, self.is_outlier, self.typical))

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
        if self.baseline.device != device:
            self._one = self._one.to(device)
            self.baseline.to(device)


def _as_torch_clips(norms: Norms, max_norm: float) -> Tensor:
    """Return torch's own coefficient, with its rounding; where a half-precision norm overflows, the one it meant."""
    coefficient = clip_coefficient(norms.as_torch, max_norm)
    if norms.as_torch is norms.total:
        return coefficient
    meant = clip_coefficient(norms.total, max_norm).to(coefficient.dtype)
    return torch.where(norms.as_torch < torch.inf, coefficient, meant)

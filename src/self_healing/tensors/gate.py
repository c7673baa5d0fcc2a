"""One look at the gradients per optimizer step: is it finite, is it an outlier, what is it clipped to, is it applied.

`judge` measures the gradients, compares the logarithm of their norm with that of the run's own recent past, clips
them, and leaves the decisions in tensors: `skip` for a fused optimizer and a row of telemetry for a host that reads it
later. On CUDA everything is decided on the device. On a CPU the host has the numbers anyway and decides faster. On other
devices, and with a torch without our kernel, the host waits once for the norm and the loss of each step, and once more
where it is clipped; the Trainer's own NaN filter, which is switched off, waits twice for each micro-batch. A healthy step
is clipped exactly as torch would clip it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .adagc import AdaGC
from .baseline import LogNormBaseline
from .fused import READING, Flags, FusedJudge, fused_judge
from .norms import Norms, clip_coefficient
from .zclip import ZClip

ROUNDING = 0.02
"""A norm that is smaller than the limit by more than this share is not clipped, however roughly torch computes it."""

LARGEST_FLOAT = torch.finfo(torch.float32).max
"""A norm beyond single precision counts as not finite, on every device."""


class GradientGate:
    """Measures, judges and clips the gradients of one optimizer step.

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
        self.may_fuse = True
        """False keeps to ordinary operations also where a kernel could do the same."""
        self.norm = torch.zeros(())
        """Norm of the newest gradients before clipping."""
        self.coefficient = torch.ones(())
        """What they were multiplied by; for AdaGC the ratio of the norms afterwards and before."""
        self.found_inf = torch.zeros(())
        """One where the norm is not finite (or overflows single precision), as a fused optimizer wants it."""
        self.is_outlier = torch.zeros(())
        """One where the norm is finite and an outlier."""
        self.skip = torch.zeros(())
        """One where the update must not be applied: it is unsound, or one before it still has to be made up."""
        self.is_skipped: bool | None = None
        """The same as the host knows it; None where only the device does."""
        self._baseline = LogNormBaseline()
        self._fused: FusedJudge | None = None
        self._device: torch.device | None = None
        self._is_held = False
        self._zero, self._one = torch.zeros(()), torch.ones(())
        self._held = self._zero
        self.row: Tensor | list[float] = torch.zeros(0)
        """What is to be told of the newest gradients, as `READING` names it: the `row` given to `judge` where it was
        used, and plain numbers where the host has judged."""

    @property
    def state(self) -> Tensor:
        """The numbers of the baseline, in the order of its fields."""
        return (
            self._fused.state
            if self._fused is not None
            else torch.tensor(self._baseline.numbers(), dtype=torch.float64)
        )

    @torch.no_grad()
    def judge(
        self,
        grads: Sequence[Tensor | None],
        max_norm: float | None,
        *,
        loss: Tensor | None = None,
        holds: bool = False,
        by_loss: bool = True,
        row: Tensor | None = None,
    ) -> Tensor:
        """Judge the gradients, clip them in place and return the norm they had.

        None stands for a parameter without a gradient; AdaGC tells the parameters apart by their place. No
        `max_norm`, or one of zero, means no constant limit. Gradients whose norm is not finite stay as they are.

        With `holds`, `skip` says whether this update is to be left out: the norm or (unless not `by_loss`) the
        `loss` is not finite, or an update before it was left out and `release` has not been called since. `row` is
        pinned memory that the device may write the telemetry to.
        """
        norms = Norms([grad for grad in grads if grad is not None], self._one.device)
        self._move_to(norms.total.device)
        max_norm = max_norm or None
        clips = self.clip_outliers and self.always is None and self.per_tensor is None
        flags = Flags(clips=clips, holds=holds, by_loss=by_loss)
        fused = self._fused if norms.as_torch.dtype is not torch.float64 else None
        # What is held back comes again when it is made up: it is learned then, and not twice. So does a step whose loss
        # is not finite, whatever its gradients are.
        self._held = fused.held if fused is not None else self._one if self._is_held else self._zero
        clips_always = self.always is not None or self.per_tensor is not None
        if loss is not None and (clips_always or fused is not None):
            loss = loss.detach().reshape(()).to(norms.total)
            if by_loss and clips_always:
                self._held = torch.add(self._held, loss, alpha=0)  # as it was, or no number: both read "not zero"
        if self.per_tensor is not None:  # first: the judgement writes down what is held back from now on
            self.coefficient = self.per_tensor.clip_(grads, norms, max_norm, self._held)
        if fused is not None:
            coefficient: Tensor | None = self._judge_fused(fused, norms, loss, max_norm, row, flags)
        else:
            coefficient = self._judge(norms, loss, max_norm, flags)
        self.norm = norms.total.to(torch.float32)
        if self.per_tensor is None:
            self.coefficient = self._one if coefficient is None else coefficient.to(torch.float32)
            if coefficient is not None and (clips or max_norm is not None or self.always is not None):
                norms.scale_(coefficient)
        return self.norm

    def _judge_fused(  # noqa: PLR0917  # private, and called once
        self,
        fused: FusedJudge,
        norms: Norms,
        loss: Tensor | None,
        max_norm: float | None,
        row: Tensor | None,
        flags: Flags,
    ) -> Tensor:
        """Judge by the kernel, and return what the gradients are to be multiplied by in torch's own dtype."""
        limit = None
        if self.per_tensor is not None:
            max_norm = None
        elif norms.as_torch is norms.total:  # the kernel rounds as torch does
            limit = None if self.always is None else self._limit(norms, None)
        elif self.always is not None or max_norm is not None:
            limit, max_norm = self._limit(norms, max_norm).to(torch.float32), None
        self.row = fused.judge(norms.total, loss=loss, limit=limit, max_norm=max_norm, row=row, flags=flags)
        self.found_inf, self.skip, self.is_outlier = fused.found_inf, fused.skip, fused.is_outlier
        self.is_skipped = None
        return fused.coefficient.to(norms.as_torch.dtype)

    def _judge(self, norms: Norms, loss: Tensor | None, max_norm: float | None, flags: Flags) -> Tensor | None:
        """Judge by numbers, and return what the gradients are to be multiplied by; None leaves them as they are."""
        norm, value = _numbers(norms.total, loss)
        loss_is_sound = not flags.by_loss or math.isfinite(value)
        learns = loss_is_sound and not self._is_held
        found = self._baseline.judge(norm if norm <= LARGEST_FLOAT else math.inf, learns=learns)
        is_sound = found.is_finite and loss_is_sound
        is_skipped = flags.holds and (self._is_held or not is_sound)
        if flags.holds:
            self._is_held = is_skipped
        coefficient = self._coefficient(norms, norm, max_norm, found.share if flags.clips else 1.0)
        if not found.is_finite:
            coefficient = None
        self.found_inf = self._zero if found.is_finite else self._one
        self.is_outlier = self._one if found.is_outlier else self._zero
        self.skip, self.is_skipped = self._one if is_skipped else self._zero, is_skipped
        share = 1.0 if coefficient is None else coefficient.item()
        shown = math.inf if norm > LARGEST_FLOAT else norm
        row = (value, is_sound, not is_skipped, shown, share, found.z, not found.is_finite, found.is_outlier)
        self.row = [*map(float, row), found.typical]
        return coefficient

    def _coefficient(self, norms: Norms, norm: float, max_norm: float | None, share: float) -> Tensor | None:
        """Return the coefficient of a finite norm as torch would round it; None where it is one."""
        is_small = max_norm is None or norm < max_norm * (1.0 - ROUNDING)
        if is_small and self.always is None and share == 1.0:
            return None
        limit = self._limit(norms, max_norm)
        return limit if share == 1.0 else limit.clamp(max=share)

    def release(self) -> None:
        """Let the next update through although one before it was skipped."""
        self._is_held = False
        if self._fused is not None:
            self._fused.release()

    @property
    def z(self) -> Tensor:
        """Distance of the norm's logarithm from its level in scales; zero until the baseline is ready."""
        return self._told("z")

    @property
    def typical(self) -> Tensor:
        """Norm that the newest one was compared with; zero until the baseline is ready."""
        return self._told("typical")

    def _told(self, name: str) -> Tensor:
        if isinstance(self.row, list):
            return torch.tensor(self.row[READING.index(name)])
        told: Tensor = getattr(self._fused, name, self._zero)
        return told

    def telemetry(self) -> Tensor:
        """Return the newest row as a tensor."""
        return self.row if isinstance(self.row, Tensor) else torch.tensor(self.row)

    def _limit(self, norms: Norms, max_norm: float | None) -> Tensor:
        """Return what the gradients are multiplied by if the norm is no outlier, in torch's own dtype."""
        if self.per_tensor is not None:
            return self._one
        limit = None if max_norm is None else _as_torch_clips(norms, max_norm)
        if self.always is not None:
            published = self.always.coefficient(norms.total, self._held).to(norms.as_torch.dtype)
            limit = published if limit is None else torch.minimum(limit, published)
        return self._one.to(norms.as_torch.dtype) if limit is None else limit

    def state_dict(self) -> dict[str, object]:
        """Return copies of what has been learned, that of ZClip or AdaGC included."""
        state: dict[str, object] = {"baseline": self.state.clone()}
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
        self._baseline = LogNormBaseline.of(baseline.tolist())
        self._fused = self._device = None  # made again from the state that was loaded
        if self.always is not None and isinstance(always, Mapping):
            self.always.load_state_dict(always)
        if self.per_tensor is not None and isinstance(per_tensor, Mapping):
            self.per_tensor.load_state_dict(per_tensor)

    def __getstate__(self) -> dict[str, object]:
        # A kernel belongs to its process and its memory to one gate: a copy starts from the state and makes its own.
        return {**self.__dict__, "_baseline": LogNormBaseline.of(self.state.tolist()), "_fused": None, "_device": None}

    def _move_to(self, device: torch.device) -> None:
        if self._device == device:
            return
        self._baseline = LogNormBaseline.of(self.state.tolist())
        self._one, self._zero = torch.ones((), device=device), torch.zeros((), device=device)
        self._fused = fused_judge(self.state.to(device, torch.float32)) if self.may_fuse else None
        self._device = device


def _numbers(norm: Tensor, loss: Tensor | None) -> tuple[float, float]:
    """Return both as numbers; zero stands for no loss. From another device than the CPU they come together."""
    if loss is None:
        return norm.item(), 0.0
    if norm.device.type == "cpu":
        return norm.item(), loss.item()
    together: list[float] = torch.stack((norm, loss.detach().reshape(()).to(norm))).tolist()
    return together[0], together[1]


def _as_torch_clips(norms: Norms, max_norm: float) -> Tensor:
    """Return torch's own coefficient, with its rounding; where a half-precision norm overflows, the one it meant."""
    coefficient = clip_coefficient(norms.as_torch, max_norm)
    if norms.as_torch is norms.total:
        return coefficient
    meant = clip_coefficient(norms.total, max_norm).to(coefficient.dtype)
    return torch.where(norms.as_torch < torch.inf, coefficient, meant)

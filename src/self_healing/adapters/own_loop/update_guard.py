"""What a loop of its own calls on its way through an update: losses and gradients are looked at before they count."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from ..engines import has_scaler
from ..step.learning_rate import LearningRateScale
from ..wrapping import Wrapping

if TYPE_CHECKING:
    from torch import Tensor

Phase = Literal["rollout", "training", "samples"]


class UnsoundUpdate(Exception):  # no error: it only unwinds the loop
    """Leaves an update that must not be finished: a loss, a gradient or a weight is not finite."""

    def __init__(self, kind: Literal["gradient", "weights"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


class UpdateGuard:
    """Judges every optimizer step of the updates; the host waits for it, which is little beside a rollout."""

    def __init__(self, trainer: Any, *, acts: bool, lets_through: bool) -> None:
        from ...tensors.gate import GradientGate

        self.trainer = trainer
        self.acts = acts
        """False only measures."""
        self.lets_through = lets_through
        """True applies unsound steps too, as the user has asked for."""
        self.may_return = False
        """An unsound step ends the update, which is run again; else the step is left out."""
        self.phase: Phase = "rollout"
        self.limit: float | None = None
        """What gradients are clipped to; these loops clip nothing themselves."""
        self.rate_scale = LearningRateScale()
        self.pieces = 1
        """How many pieces a micro-batch of the user's settings is trained in."""
        self._piece = 0
        self.skipped_steps = 0
        self.skipped_now = 0
        """Of these, those of the update at hand."""
        self.nan_count = 0
        """Steps whose loss or gradients were not finite."""
        # Without a limit nothing is changed: what such a loop takes for usual varies much from step to step.
        self._gate = GradientGate(clip_outliers=False)
        self._loss: Tensor | None = None
        self._losses: list[float] = []
        self._norms: list[float] = []

    def attach(self, wrapping: Wrapping) -> None:
        """Replace what the loop calls."""
        accelerator = self.trainer.accelerator
        for owner, name, around in (
            (accelerator, "accumulate", self._around_accumulate),
            (accelerator, "_do_sync", self._around_sync),
            (accelerator, "backward", self._around_backward),
            (self.trainer.optimizer, "step", self._around_step),
        ):
            if hasattr(owner, name):  # without one of them a loop is only watched, and that is said
                wrapping.wrap(owner, name, around)

    def update_begins(self) -> None:
        """Forget what was seen of the update before, or of the attempt before."""
        self.phase = "rollout"
        self._piece = self.skipped_now = 0
        self._loss = None
        self._losses.clear()
        self._norms.clear()

    def values(self) -> dict[str, float]:
        """Return what was seen of the update: mean loss, largest gradient norm; one that is not finite counts."""
        found: dict[str, float] = {}
        if self._losses:
            found["loss"] = sum(self._losses) / len(self._losses)
        if self._norms:
            odd = next((norm for norm in self._norms if not math.isfinite(norm)), None)
            found["grad_norm"] = max(self._norms) if odd is None else odd
        return found

    def broken_weights(self) -> int:
        """Return how many parameters that train are not finite; waits for the device once."""
        import torch

        trained = [p for p in self.trainer.model.parameters() if p.requires_grad]
        return int((~torch.stack([torch.isfinite(p.detach()).all() for p in trained])).sum()) if trained else 0

    def _around_accumulate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def accumulate(*models: Any) -> Any:
            self.phase = "training"
            return original(*models)

        return accumulate

    def _around_sync(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keep to one optimizer step for all pieces of a micro-batch also where accelerate makes one after each.

        With the last batch of a loader in use it accumulates nothing, so that there would be a step after each piece.
        """
        gradients = self.trainer.accelerator.gradient_state

        def _do_sync() -> None:
            original()
            self._piece += 1
            if self.pieces > 1 and gradients.sync_with_dataloader and gradients.end_of_dataloader:
                gradients._set_sync_gradients(self._piece % self.pieces == 0)  # noqa: SLF001  # what it calls itself

        return _do_sync

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, **kwargs: Any) -> Any:
            seen = loss.detach()
            self._loss = seen if self._loss is None else self._loss + seen
            return original(loss, **kwargs)

        return backward

    def _around_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            accelerator = self.trainer.accelerator
            if not accelerator.sync_gradients:  # no update yet: gradients are still added up
                return original(*args, **kwargs)
            is_sound = self._judge()
            if is_sound or not self.acts or self.lets_through:
                with self.rate_scale.applied(self.trainer.optimizer.param_groups):
                    return original(*args, **kwargs)
            if self.may_return:
                update = int(self.trainer.state.global_step) + 1
                raise UnsoundUpdate("gradient", f"a loss or a gradient of update {update} is not finite")
            self.skipped_steps += 1
            self.skipped_now += 1
            return None  # the loop clears the gradients next

        return step

    def _judge(self) -> bool:
        """Look at the gradients that were added up, and at their losses; clip them where there is a limit."""
        import torch

        loss = torch.zeros(()) if self._loss is None else self._loss
        self._loss = None
        if has_scaler(self.trainer.accelerator):  # it holds back what has overflowed, by design
            norm, value = 0.0, float(loss)
        else:
            gradients = [p.grad for group in self.trainer.optimizer.param_groups for p in group["params"]]
            measured = self._gate.judge(gradients, self.limit, loss=loss)
            norm, value = torch.stack((measured, loss.reshape(()).to(measured))).tolist()
            self._norms.append(norm)
        self._losses.append(value)
        is_sound = math.isfinite(norm) and math.isfinite(value)
        self.nan_count += not is_sound
        return is_sound

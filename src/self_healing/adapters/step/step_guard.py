"""The guard of a training step, whoever's loop it is: measure, clip, skip on the device, and make up what was skipped.

The device decides whether an update is applied; the host reads that decision one step later, without waiting, and then
runs the skipped step again with the same batch, random state and learning rate. Until then the device holds back every
later update too, so that updates are applied in their order. A run whose fault was transient ends bit-identical to one
without it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...tensors.fused import READING
from ...tensors.gate import GradientGate
from ...tensors.skip import SkippingOptimizer
from ...tensors.telemetry import TelemetryRing
from ..engines import engines_of, has_scaler
from .learning_rate import LearningRateScale
from .loss_sum import LossSum
from .make_up import MakeUp
from .step_buffers import StepBuffers
from .step_reading import StepReading
from .update_numbers import UpdateNumbers
from .window import MicroBatch, Window

if TYPE_CHECKING:
    from ..data.bad_rows import BadRows
    from ..memory.micro_batch_retry import MicroBatchRetry


class StepGuard:
    """The hot path of one loop: the gate, the windows that may have to be made up, what the device has said of them."""

    original_training_step: Callable[..., Any]
    """Runs one micro-batch forward and back, as the loop does."""
    optimizer_step: Callable[..., Any]
    """The optimizer's own step."""

    def __init__(self, trainer: Any, gate: GradientGate, *, acts: bool = True) -> None:
        self.trainer = trainer
        self.gate = gate
        self.acts = acts
        """False only measures: nothing is clipped, skipped or made up."""
        self.lets_through = False
        """True applies unsound updates too, as the user has asked for."""
        self.device_is_lost = False
        """The device is never asked for anything again."""
        self.clips = acts and not any(engine.clips_itself for engine in engines_of(trainer))
        self.is_one_of_several = int(trainer.args.world_size) > 1
        """Other processes must come to the same decisions at the same step."""
        self.loss_sum = LossSum(trainer)
        self.rate_scale = LearningRateScale()
        self.ring = TelemetryRing()
        self.kept: deque[Window] = deque()
        self.making_up = MakeUp(self)
        self.retry: MicroBatchRetry | None = None
        """Gets micro-batches through when memory runs out; None leaves that to the trainer."""
        self.bad_rows: BadRows | None = None
        """Gets micro-batches through when the model raises on some of their rows."""
        self.buffers = StepBuffers(trainer.model)
        self._window: Window | None = None
        self._micro_batch: MicroBatch | None = None
        self._is_judged = False
        self.rate = 0.0
        """Learning rate of the newest update, cuts included."""
        self._without_loss: set[int] = set()
        """Steps that are not read yet and whose loss nobody has told us."""
        self._numbers: dict[int, UpdateNumbers] = {}
        """Of steps that are not read yet: by what they were made."""

    # -- a step --------------------------------------------------------------------------------------

    def _account(self, window: Window, loss: Tensor) -> Tensor:
        """Add a loss to its window; a non-finite one counts as zero, so that it cannot spoil the logged mean."""
        value = loss.detach()
        is_known = value.device.type == "cpu" and value.ndim == 0 and math.isfinite(value.item())  # else: a wait
        counted = value if is_known else torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        window.losses.append(counted)
        # The plain sum is not finite as soon as one loss is not: one number says whether the window is sound.
        window.loss = value if window.loss is None else window.loss + value
        # What will not be made up must be seen: a mean of 0.0 over NaN would be a lie.
        added: Tensor = self.loss_sum.to_be_added(counted if self.making_up.is_running or self._may_skip() else loss)
        return added

    def _update(self, window: Window, step: Callable[[], Any]) -> Any:
        """Apply the update unless it is unsound or an earlier one is still to be made up; never wait for the device."""
        self.judge_if_needed()
        optimizer = self.trainer.optimizer
        groups = optimizer.param_groups
        window.numbers = UpdateNumbers.of(groups, self.rate_scale.value)
        with nullcontext() if self.rate_scale.value == 1.0 else self.rate_scale.applied(groups):
            if self.gate.is_skipped is False or not self._may_skip():
                result = step()
            else:
                result = SkippingOptimizer(optimizer).step_unless(self.gate.skip, step)
        if self.acts:
            self.kept.append(window)
        self.ring.push(window.step + 1, self.gate.row)
        if window.loss is None:
            self._without_loss.add(window.step + 1)
        self.rate = window.numbers.rate
        self._numbers[window.step + 1] = window.numbers
        return result

    def _may_skip(self) -> bool:
        # A GradScaler skips by itself, with the attributes of the optimizer that we would use.
        return (
            self.acts
            and not self.lets_through
            and not self.making_up.is_running
            and not has_scaler(self.trainer.accelerator)
        )

    def _judge(self, gradients: list[Tensor | None], limit: float | None) -> Tensor:
        """Let the gate look at the gradients of the step at hand; return their norm."""
        self._is_judged = True
        return self.gate.judge(
            gradients,
            limit,
            loss=None if self._window is None else self._window.loss,
            holds=self._may_skip(),
            by_loss=not self.is_one_of_several,  # several processes go by what they share
            row=None if self.making_up.is_running else self.ring.place(len(READING), self.gate.norm.device),
        )

    def _note_norm(self, norm: Any) -> None:
        """Judge a norm that somebody else has measured, before they clipped."""
        if norm is not None:
            # The norm of one number is that number.
            self._measure([torch.as_tensor(norm, dtype=torch.float32, device=self.trainer.args.device).reshape(1)])

    def _measure(self, gradients: list[Tensor | None]) -> None:
        clipping, self.gate.clip_outliers = self.gate.clip_outliers, False
        self._judge(gradients, None)
        self.gate.clip_outliers = clipping

    def judge_if_needed(self) -> None:
        """Look at the gradients where nobody has asked for their norm."""
        if not self._is_judged:
            gradients = [p.grad for group in self.trainer.optimizer.param_groups for p in group["params"]]
            if self.trainer.args.max_grad_norm:  # they were clipped, in a way that we do not see
                self._measure(gradients)
            else:  # older versions of transformers ask only where there is a limit
                self.trainer.accelerator.unscale_gradients()
                self._judge(gradients, None) if self.clips else self._measure(gradients)
        self._is_judged = False

    def step_is_done(self) -> None:
        """Hear that the loop is through with a step, for whoever has looked ahead in it."""

    def clip(self) -> None:
        """Clip as the loop would; without a limit the gradients are measured only."""
        trainer, limit = self.trainer, self.trainer.args.max_grad_norm
        model = trainer.model_wrapped
        if limit > 0 and hasattr(trainer, "_clip_grad_norm"):  # since transformers 5; it may be a subclass's own
            trainer._clip_grad_norm(model)  # noqa: SLF001
        else:
            trainer.accelerator.clip_grad_norm_(model.parameters(), limit if limit > 0 else float("inf"))

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.trainer.model_wrapped.zero_grad()

    def is_in_micro_batch(self) -> bool:
        """Say whether an exception has left a forward or backward pass unfinished."""
        return self._window is not None and len(self._window.micro_batches) > len(self._window.losses)

    def abandon_step(self) -> None:
        """Make it as though the unfinished step had not been begun, so that what is saved is the last complete one."""
        window, self._window = self._window, None
        if window is None or not window.micro_batches:
            return
        self.buffers.put_back(window.buffers)
        window.count_nothing(self.trainer)

    # -- reading what the device said ----------------------------------------------------------------

    def readings(self, *, wait: bool) -> Iterator[StepReading]:
        """Yield what is known of finished steps, and make up the skipped ones before the next is begun."""
        if wait:
            rows = self.ring.drain()
        elif self.is_one_of_several:  # all read the same step at the same time, which the device has long finished
            rows = self.ring.drain(but_newest=1)
        else:
            rows = self.ring.ready()
        for step, values in rows:
            loss, is_sound, is_applied, norm, coefficient, z, found_inf, is_outlier, _typical = values
            numbers = self._numbers.pop(step, UpdateNumbers([self.rate]))
            reading = StepReading(
                step=step, loss=loss, is_sound=is_sound > 0.5, is_applied=is_applied > 0.5, norm=norm, rate=numbers.rate,
                coefficient=coefficient, z=z, is_outlier=is_outlier > 0.5, numbers=numbers,
                has_loss=step not in self._without_loss,
                is_routine_overflow=found_inf >= 0.5 and self._is_routine_overflow(loss),
            )  # fmt: skip
            self._without_loss.discard(step)
            if self.acts and reading.is_applied and self.kept:
                self.making_up.spare = self.kept.popleft()
            yield reading

    def _is_routine_overflow(self, loss: float) -> bool:
        accelerator = self.trainer.accelerator
        if not has_scaler(accelerator) or not math.isfinite(loss):
            return False
        # Only asked after an overflow, so waiting for the device is cheap. At a scale below one nothing is scaled up.
        return bool(accelerator.scaler.get_scale() >= 1.0)

    def make_up(self) -> int:
        """Run the steps that were skipped or held back again, in their order; return how many were applied."""
        windows, interrupted = self._take_skipped(), self._window
        try:
            return self.making_up.run(windows)
        finally:
            self.kept.extend(windows)  # one has raised: nobody may take these for applied
            self._window = None if self.making_up.is_undone else interrupted
            self._is_judged = False

    def _take_skipped(self) -> list[Window]:
        """Return the steps that were skipped or held back, and let updates through again."""
        rest = self.ring.drain()  # an incident: waiting is cheap now, and nothing later may overtake
        assert all(values[2] < 0.5 for _, values in rest), "an update was applied behind a skipped one"
        windows = list(self.kept)
        self.kept.clear()
        self.gate.release()
        return windows

    def forget_steps(self) -> None:
        """Let go of the steps that are not known to be applied: the run is at an earlier state, and they have not happened."""
        self.ring.drain()
        self.kept.clear()
        self.making_up.applied = []  # the steps of these numbers are others from now on
        self.making_up.is_undone = True
        self._window = None
        self._is_judged = False

    def run_micro_batch(self, model: Any, window: Window, micro_batch: MicroBatch, place: int) -> None:
        """Run one micro-batch of a step that is made up, as the loop would."""
        self._micro_batch = micro_batch
        run, num_items = self.original_training_step, window.num_items
        try:
            if self.retry is None:
                loss = run(model, micro_batch.inputs, num_items)
            else:
                micro_batch.put_back = self._putting_back(self.buffers.copies())
                loss = self.retry.run(run, model, micro_batch, num_items, place=place)
        finally:
            self._micro_batch = None
        self._account(window, loss)

    def _putting_back(self, copies: dict[int, Any]) -> Callable[[], None] | None:
        return partial(self.buffers.put_back, copies) if copies else None

    def is_unsound(self, window: Window) -> bool:
        """Say whether a step that was just judged must not be applied; waits for the device."""
        is_finite = self.is_one_of_several or bool(torch.isfinite(window.loss).all())
        return bool(self.gate.found_inf) or not is_finite

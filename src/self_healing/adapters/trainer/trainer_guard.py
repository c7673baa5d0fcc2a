"""The guard inside a Hugging Face Trainer's step: measure, clip, skip on the device, and make up what was skipped.

Nothing is subclassed: methods are replaced on the one trainer for the time of `train()`. The device decides whether an
update is applied; the host reads that decision one step later, without waiting, and then runs the skipped step again
with the same batch, random state and learning rate. Until then the device holds back every later update too, so that
updates are applied in their order. A run whose fault was transient ends bit-identical to one without it.
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
from ...tensors.known_modules import gradients_are_plain
from ...tensors.random_state import RandomState, devices_of, draws_on
from ...tensors.skip import SkippingOptimizer
from ...tensors.telemetry import TelemetryRing
from .engines import engines_of, has_scaler
from .flop_count import FlopCount
from .learning_rate import LearningRateScale
from .loss_sum import LossSum
from .make_up import MakeUp
from .spared_walks import SparedWalks, already_training
from .step_buffers import StepBuffers
from .step_reading import StepReading
from .trl_counters import BeforeGenerating, Counters
from .window import MicroBatch, Window
from .wrapping import Wrapping

if TYPE_CHECKING:
    from ..data.bad_rows import BadRows
    from ..memory.micro_batch_retry import MicroBatchRetry


class TrainerGuard:
    """The hot path of one trainer: replaced methods, the gate, the windows that may have to be made up."""

    def __init__(self, trainer: Any, gate: GradientGate, *, acts: bool = True) -> None:
        self.trainer = trainer
        self.gate = gate
        self.acts = acts
        """False only measures: nothing is clipped, skipped or made up."""
        self.lets_through = False
        """True applies unsound updates too, as the user has asked for."""
        self.device_is_lost = False
        """The device is never asked for anything again."""
        engines = engines_of(trainer)
        self.clips = acts and not any(engine.clips_itself for engine in engines)
        self.is_one_of_several = int(trainer.args.world_size) > 1
        """Other processes must come to the same decisions at the same step."""
        self.loss_sum = LossSum(trainer)
        self.walks = SparedWalks(trainer)
        self._flops = FlopCount(trainer, self.walks.modules)
        self.rate_scale = LearningRateScale()
        self.ring = TelemetryRing()
        self.kept: deque[Window] = deque()
        self.making_up = MakeUp(self)
        self.retry: MicroBatchRetry | None = None
        """Gets micro-batches through when memory runs out; None leaves that to the trainer."""
        self.bad_rows: BadRows | None = None
        """Gets micro-batches through when the model raises on some of their rows."""
        self.buffers = StepBuffers(trainer.model)
        self._wrapping = Wrapping()
        self._window: Window | None = None
        self._micro_batch: MicroBatch | None = None
        self._is_judged = False
        self._prepares = False
        """True once the trainer was seen to prepare its inputs inside `training_step`."""
        self._way = "host"
        self.rate = 0.0
        """Learning rate of the newest update, cuts included."""
        self._rates: dict[int, tuple[float, float]] = {}
        """Of steps that are not read yet: the rate of the first group and the largest one."""
        self._step_wrapping = Wrapping()

    # -- attaching -----------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the methods the loop calls on its way to an update."""
        trainer, wrapping = self.trainer, self._wrapping
        for owner, name, around in (
            (trainer, "get_batch_samples", self._around_fetch),
            (trainer, "training_step", self._around_training_step),
            (trainer, "_prepare_inputs", self._around_prepare),
            (trainer.accelerator, "clip_grad_norm_", self._around_clip),
        ):
            if hasattr(owner, name):  # what is done without one is said in `relied_on`
                wrapping.wrap(owner, name, around)
        if self.clips and not trainer.args.fp16 and wrapping.is_of_transformers(trainer, "_clip_grad_norm"):
            wrapping.wrap(trainer, "_clip_grad_norm", self._around_clip_of_model)
        self._flops.attach(wrapping)
        self.walks.attach(wrapping)
        self.loss_sum.attach(wrapping)
        if self.acts:  # judged on the device instead, where it costs no wait
            wrapping.replace(trainer.args, "logging_nan_inf_filter", False)

    def attach_optimizer(self) -> str:
        """Replace the optimizer's step, once the trainer has made one; return the way a step is skipped."""
        optimizer = self.trainer.optimizer
        self.loss_sum.begin()
        self._window = None
        self.kept.clear()
        self.ring.drain()  # after a restart: what is said of steps that are no longer kept
        self.gate.release()
        draws_on(devices_of(self.trainer.model_wrapped), self)
        self.buffers = StepBuffers(self.trainer.model)  # the model may be another by now, or on another device
        self.detach_optimizer()
        self._step_wrapping.wrap(optimizer, "step", self._around_step)
        self._way = SkippingOptimizer(optimizer).way
        return self._way

    def detach_optimizer(self) -> None:
        """Put the optimizer's step back, before training is entered again: a new scheduler wants to replace it too."""
        self._step_wrapping.restore()

    def detach(self) -> None:
        """Put every method back."""
        self._step_wrapping.restore()
        self._wrapping.restore()
        if not self.device_is_lost:  # else nothing more will come of it
            self.ring.drain()  # the device may still be writing to it
        draws_on((), self)
        self.kept.clear()
        self.walks.forget()
        self._window = None
        self.making_up.forget()
        self.loss_sum.let_go()

    # -- what the loop calls -------------------------------------------------------------------------

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            batches, num_items = original(*args, **kwargs)
            self.making_up.fetch_next = lambda: original(*args, **kwargs)
            wanted = args[1] if len(args) > 1 else kwargs.get("num_batches", 0)
            rest = self.making_up.data_for_the_rest_of_the_epoch(wanted - len(batches))
            if rest:  # counted anew by the trainer, together with what was left
                batches = [*batches, *rest]
                batches, num_items = original(iter(batches), len(batches), *args[2:])
            step = self.trainer.state.global_step
            self._window = Window(
                step=step,
                num_items=num_items,
                counters=Counters.of(self.trainer),
                loss_sum=self.loss_sum.before_step() if self.acts else None,
                buffers=self.buffers.before_step() if self.acts else {},
                generation=BeforeGenerating.of(self.trainer) if self.acts else None,
            )
            return batches, num_items

        return get_batch_samples

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.original_training_step = original

        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            window = self._window
            if window is None:
                return original(model, inputs, *args, **kwargs)  # type: ignore[no-any-return]
            # Taken anew after the inputs are prepared: generation draws random numbers, also those of a repetition.
            early = RandomState.capture() if self.acts and not (self._prepares and window.generation is None) else None
            self._micro_batch = MicroBatch(inputs, early)
            place = len(window.micro_batches)
            if self.retry is not None:
                self._micro_batch.put_back = self._putting_back(window.buffers if place == 0 else self.buffers.copies())
            window.micro_batches.append(self._micro_batch)
            attempt = partial(self._attempt, model, self._micro_batch, place, *args, **kwargs)
            try:
                with already_training(model, self.walks.modules, looks=place == 0):
                    loss = attempt() if self.bad_rows is None else self.bad_rows.run(attempt, self._micro_batch)
            finally:
                self._micro_batch = None
            return self._account(window, loss)

        return training_step

    def _attempt(self, model: Any, micro_batch: MicroBatch, place: int, *args: Any, **kwargs: Any) -> Tensor:
        run = self.original_training_step
        if self.retry is None:
            return run(model, micro_batch.inputs, *args, **kwargs)  # type: ignore[no-any-return]
        num_items = args[0] if args else kwargs.get("num_items_in_batch")
        return self.retry.run(run, model, micro_batch, num_items, place=place)  # type: ignore[no-any-return]

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

    def _around_prepare(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _prepare_inputs(inputs: Any) -> Any:
            micro_batch = self._micro_batch
            if micro_batch is None:
                return original(inputs)
            if self.making_up.is_running and micro_batch.prepared is not None:
                return micro_batch.again()
            before = Counters.of(self.trainer)
            prepared = original(inputs)
            micro_batch.counted = before.added(self.trainer)
            self._prepares = True
            if self.acts:
                micro_batch.keep(prepared, RandomState.capture())
            return prepared

        return _prepare_inputs

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        accelerator = self.trainer.accelerator

        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
            if norm_type != 2 or not self.clips:
                norm = original(parameters, max_norm, norm_type)
                self._note_norm(norm if norm_type == 2 else None)
                return norm
            accelerator.unscale_gradients()
            limit = None if max_norm == float("inf") else float(max_norm)
            return self._judge([p.grad for p in parameters], limit)

        return clip_grad_norm_

    def _around_clip_of_model(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Save the loop a walk or two through the modules, which take longer than all that is judged here."""

        def _clip_grad_norm(model: Any) -> Any:
            parameters = self.walks.modules.parameters_seen(model)
            if not gradients_are_plain(parameters):  # sharded
                return original(model)
            return self.trainer.accelerator.clip_grad_norm_(parameters, self.trainer.args.max_grad_norm)

        return _clip_grad_norm

    def _around_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.optimizer_step = original

        def step(*args: Any, **kwargs: Any) -> Any:
            window = self._window
            if window is None or window.loss is None:
                return original(*args, **kwargs)
            try:
                return self._update(window, lambda: original(*args, **kwargs))
            finally:
                self._window = None

        return step

    def _update(self, window: Window, step: Callable[[], Any]) -> Any:
        """Apply the update unless it is unsound or an earlier one is still to be made up; never wait for the device."""
        self.judge_if_needed()
        optimizer = self.trainer.optimizer
        groups = optimizer.param_groups
        window.rates = [float(group["lr"]) for group in groups]
        rates = [rate * self.rate_scale.value for rate in window.rates] or [0.0]
        with nullcontext() if self.rate_scale.value == 1.0 else self.rate_scale.applied(groups):
            if self.gate.is_skipped is False or not self._may_skip():
                result = step()
            else:
                result = SkippingOptimizer(optimizer).step_unless(self.gate.skip, step)
        if self.acts:
            self.kept.append(window)
        self.ring.push(window.step + 1, self.gate.row)
        self.rate = rates[0]
        self._rates[window.step + 1] = rates[0], max(rates)
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
            rate, largest_rate = self._rates.pop(step, (self.rate, self.rate))
            reading = StepReading(
                step=step, loss=loss, is_sound=is_sound > 0.5, is_applied=is_applied > 0.5, norm=norm, rate=rate,
                coefficient=coefficient, z=z, is_outlier=is_outlier > 0.5, largest_rate=largest_rate,
                is_routine_overflow=found_inf >= 0.5 and self._is_routine_overflow(loss),
            )  # fmt: skip
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
        rest = self.ring.drain()  # an incident: waiting is cheap now, and nothing later may overtake
        assert all(values[2] < 0.5 for _, values in rest), "an update was applied behind a skipped one"
        windows = list(self.kept)
        self.kept.clear()
        self.gate.release()
        interrupted = self._window
        try:
            return self.making_up.run(windows)
        finally:
            self._window = interrupted
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

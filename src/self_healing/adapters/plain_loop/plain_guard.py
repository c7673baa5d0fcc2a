"""The guard of a step in a loop of somebody's own: what `with run.step(batch) as s` calls on its way to an update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ...tensors.gate import GradientGate
from ...tensors.norms import Norms
from ...tensors.random_state import RandomState, devices_of, draws_on
from ...tensors.skip import SkippingOptimizer
from ..engines import has_scaler
from ..step.loss_sum import LossSum
from ..step.step_guard import StepGuard
from ..step.trl_counters import Counters
from ..step.window import MicroBatch, Window
from ..wrapping import Wrapping
from .stand_in import LoopStandIn, LossSource

WANTS_A_FIGURE = "ReduceLROnPlateau.step wants a figure that only the loop has: use guard(..., steps_scheduler=False) and step it there"
STEPPED_TWICE = (
    "the update of this step has been applied when the block of run.step was left, and there are no gradients for another: "
    "leave optimizer.step() out, or use run.step(batch, commit=False)"
)


class NoLossSum(LossSum):
    """For a loop that keeps its sums itself."""

    def before_step(self) -> Any:
        """Return nothing worth keeping."""
        return torch.zeros(())

    def set_back(self, before: Any) -> None:
        """Leave the loop's sums alone."""

    def add(self, loss: Any) -> None:
        """Leave the loop's sums alone."""

    def go_on_from(self, known: Any) -> None:
        """Leave the loop's sums alone."""

    def to_be_added(self, loss: Any) -> Any:
        """Return the loss as it is."""
        return loss


class PlainGuard(StepGuard):
    """The hot path of one loop."""

    trainer: LoopStandIn

    def __init__(self, stand_in: LoopStandIn, gate: GradientGate, *, acts: bool = True) -> None:
        super().__init__(stand_in, gate, acts=acts)
        self.loss_sum = NoLossSum(stand_in)
        self.original_training_step = stand_in.training_step
        self.steps_done = 0
        """Updates that the loop has asked for, applied or not."""
        self.updated: Callable[[Window], None] = _nobody_listens
        """Is told of every update."""
        self._wrapping = Wrapping()
        self.steps_scheduler = True
        """The scheduler steps with each update that is applied here; else the loop steps it."""
        self._is_ours = False
        """The optimizer's step is called by us."""
        self.hands_out_again = False
        """The loop takes its batches from us, so that it can be given one again."""
        self._blocks_before = 0
        """Losses of the update at hand that came before the block at hand."""
        self._has_committed = False
        """The newest update was applied when its block was left."""
        self.left_to_the_loop: list[Window] = []
        """Skipped steps that the loop has to do again itself."""

    # -- attaching -----------------------------------------------------------------------------------

    def attach(self) -> str:
        """Stand around the optimizer's step, and a scaler's; return the way a step is skipped."""
        stand_in = self.trainer
        draws_on(devices_of(stand_in.model_wrapped), self)
        scaler = getattr(stand_in.accelerator, "scaler", None)
        self._wrapping.wrap(stand_in.optimizer, "step", self._around_step)
        self._wrapping.wrap(stand_in.optimizer, "zero_grad", self._around_zero_grad)
        if scaler is not None and not self._is_accelerated():
            self._wrapping.wrap(scaler, "step", self._around_scaler)
            stand_in.accelerator.unscales = partial(self._unscale, scaler)
        return SkippingOptimizer(stand_in.optimizer).way

    def detach(self) -> None:
        """Put everything back."""
        self._wrapping.restore()
        if not self.device_is_lost:
            self.ring.drain()
        draws_on((), self)
        self.kept.clear()
        self._window = None
        self.making_up.forget()
        self.trainer.source = None
        self.updated = _nobody_listens

    def _is_accelerated(self) -> bool:
        """Say whether the optimizer is one of accelerate's, which looks after a scaler itself."""
        return hasattr(self.trainer.optimizer, "scaler")

    # -- what a step calls ---------------------------------------------------------------------------

    @property
    def is_in_window(self) -> bool:
        """Whether gradients are being added up for an update."""
        return self._window is not None

    @property
    def at_hand(self) -> Window | None:
        """The update that gradients are being added up for."""
        return self._window

    def begin_window(self) -> Window:
        """Begin an update, or go on with the one that gradients are being added up for."""
        if self._window is None:
            self._window = Window(
                step=int(self.trainer.state.global_step),
                num_items=None,
                counters=Counters(),
                loss_sum=None,
                buffers=self.buffers.before_step() if self.acts else {},
            )
        return self._window

    def begin_block(self, window: Window) -> None:
        """Begin a block of an update; where the loop has passed over the blocks before it, nothing of theirs counts."""
        self._blocks_before = len(window.losses)
        if window.losses and all(gradient is None for gradient in self._gradients()):
            self._forget_blocks_before(window)

    def _forget_blocks_before(self, window: Window) -> None:
        if window.micro_batches:  # what we have run ourselves is part of the update
            return
        del window.losses[: self._blocks_before]
        self._blocks_before, window.loss = 0, None
        for loss in window.losses:
            window.loss = loss if window.loss is None else window.loss + loss

    def run(self, source: LossSource) -> Tensor:
        """Run one micro-batch forward and back; return its share of the loss."""
        window = self.begin_window()
        place = len(window.micro_batches)
        micro_batch = MicroBatch(source.data.fields, RandomState.capture() if self.acts else None, source=source)
        if self.retry is not None:
            micro_batch.put_back = self._putting_back(window.buffers if place == 0 else self.buffers.copies())
        window.micro_batches.append(micro_batch)
        attempt = partial(self._attempt, window, micro_batch, place)
        loss = attempt() if self.bad_rows is None else self.bad_rows.run(attempt, micro_batch)
        return self._account(window, loss)

    def _attempt(self, window: Window, micro_batch: MicroBatch, place: int) -> Tensor:
        stand_in = self.trainer
        stand_in.source = micro_batch.source
        is_last = place == stand_in.current_gradient_accumulation_steps - 1
        stand_in.accelerator.gradient_state._set_sync_gradients(is_last)  # noqa: SLF001  # as accelerate's own loop does
        model = stand_in.model_wrapped
        with nullcontext() if is_last else stand_in.accelerator.no_sync(model):
            if self.retry is None:
                return self.original_training_step(model, micro_batch.inputs)  # type: ignore[no-any-return]
            run = self.original_training_step
            return self.retry.run(run, model, micro_batch, window.num_items, place=place)  # type: ignore[no-any-return]

    def run_micro_batch(self, model: Any, window: Window, micro_batch: MicroBatch, place: int) -> None:
        """Run one micro-batch of a step that is made up, by the loss function that it had."""
        if micro_batch.source is not None:
            self.trainer.source = micro_batch.source
        super().run_micro_batch(model, window, micro_batch, place)

    def saw_loss(self, loss: Tensor) -> None:
        """Take note of a loss that the loop has run backward from itself."""
        window, value = self.begin_window(), loss.detach()
        window.losses.append(value)
        window.loss = value if window.loss is None else window.loss + value

    def commit(self) -> None:
        """Clip, judge, apply the update unless it is unsound, and go on to the next step as a loop does."""
        stand_in, window = self.trainer, self._window
        assert window is not None, "an update follows a backward pass"
        if self.steps_scheduler and isinstance(innermost_scheduler(stand_in.lr_scheduler), ReduceLROnPlateau):
            raise TypeError(WANTS_A_FIGURE)
        self.clip()
        self._update(window, self._step_optimizer)
        self.zero_grad()
        if stand_in.lr_scheduler is not None and self.steps_scheduler:
            stand_in.lr_scheduler.step()
        self._is_updated(window)
        self._has_committed = True

    def clip(self) -> None:
        """Bring the gradients to their true size, measure and clip them."""
        self.trainer.accelerator.unscale_gradients()
        gradients = self._gradients()
        limit = self.trainer.args.max_grad_norm
        # The limit is the loop's own, also where nothing of ours may act; outliers are left to a gate that may.
        self._judge(gradients, limit or None)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self._is_ours = True
        try:
            self.trainer.optimizer.zero_grad(set_to_none=True)
        finally:
            self._is_ours = False

    def optimizer_step(self) -> Any:
        """Take the optimizer's own step."""
        return self._step_optimizer()

    def abandon_step(self) -> None:
        """Make it as though the unfinished step had not been begun."""
        window = self._window
        super().abandon_step()
        if window is not None:
            self.buffers.put_back(window.buffers)
            self.zero_grad()

    def _step_optimizer(self) -> Any:
        stand_in = self.trainer
        scaler = getattr(stand_in.accelerator, "scaler", None)
        self._is_ours = True
        try:
            if scaler is None or self._is_accelerated():
                return stand_in.optimizer.step()
            result = scaler.step(stand_in.optimizer)
            scaler.update()
            return result
        finally:
            self._is_ours = False

    def _is_updated(self, window: Window) -> None:
        self._window, self._has_committed = None, False
        self.trainer.state.global_step += 1
        self.steps_done += 1
        self.updated(window)

    def _gradients(self) -> list[Tensor | None]:
        return [p.grad for group in self.trainer.optimizer.param_groups for p in group["params"]]

    # -- where the loop steps itself -----------------------------------------------------------------

    def _around_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if self._is_ours or self._window is None or self._is_accumulating():
                if not self._is_ours and self._has_committed and not args and not kwargs:
                    self._refuse_to_step_twice()
                return original(*args, **kwargs)
            return self._update_of_the_user(lambda: original(*args, **kwargs), self._gradients())

        return torch.compiler.disable(step)  # type: ignore[no-any-return]

    def _around_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if not self._is_ours and self._window is not None and not self._is_accumulating():
                self._forget_blocks_before(self._window)
            return original(*args, **kwargs)

        return torch.compiler.disable(zero_grad)  # type: ignore[no-any-return]

    def _around_scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours or self._window is None or optimizer is not self.trainer.optimizer:
                return original(optimizer, *args, **kwargs)
            self._is_ours = True  # it calls the optimizer's step, or does not
            try:
                return self._update_of_the_user(lambda: original(optimizer, *args, **kwargs), self._scaled_gradients())
            finally:
                self._is_ours = False

        return step

    def _refuse_to_step_twice(self) -> None:
        """Name a leftover of the loop, which would do nothing or decay the weights once more."""
        if all(gradient is None for gradient in self._gradients()):
            raise RuntimeError(STEPPED_TWICE)

    def _is_accumulating(self) -> bool:
        """Say whether accelerate makes nothing of this step, because more gradients are to be added."""
        return self._is_accelerated() and not self.trainer.accelerator.sync_gradients

    def _update_of_the_user(self, step: Callable[[], Any], gradients: list[Tensor | None]) -> Any:
        """Take an update that the loop asks for itself; gradients stay as the user has clipped them."""
        window = self._window
        assert window is not None, "the step is inside of a window"
        if self.trainer.args.max_grad_norm:
            self._judge(gradients, self.trainer.args.max_grad_norm)
        else:
            self._measure(gradients)
        result = self._update(window, step)
        self._is_updated(window)
        return result

    def _scaled_gradients(self) -> list[Tensor | None]:
        """Return the gradients in their true size.

        Where the optimizer itself divides them by the scale they are left as they are: dividing rounds otherwise than the
        product with its inverse does. What stands for them then is their norm, which is all that is looked at.
        """
        stand_in, scaler = self.trainer, self.trainer.accelerator.scaler
        divides = getattr(stand_in.optimizer, "_step_supports_amp_scaling", False) and not stand_in.args.max_grad_norm
        if divides and self._is_scaled(scaler):
            norm = Norms([gradient for gradient in self._gradients() if gradient is not None]).total
            return [(norm / scaler._get_scale_async()).reshape(1)]  # noqa: SLF001  # the public way waits for the device
        stand_in.accelerator.unscale_gradients()
        return self._gradients()

    def _is_scaled(self, scaler: Any) -> bool:
        """Say whether a scaler has not brought the gradients to their true size since its last update."""
        if not scaler.is_enabled() or all(gradient is None for gradient in self._gradients()):
            return False
        states = scaler._per_optimizer_states  # noqa: SLF001  # there is no public way to ask
        return bool(states[id(self.trainer.optimizer)]["stage"].name == "READY")

    def _unscale(self, scaler: Any) -> None:
        """Have a scaler bring the gradients to their true size, unless it has done so already."""
        if self._is_scaled(scaler):
            scaler.unscale_(self.trainer.optimizer)

    def make_up(self) -> int:
        """Run skipped steps again where the loop has told us how; what is left is handed out again by the loop."""
        windows = self._take_skipped()
        making_up, applied = self.making_up, []
        interrupted, self._window, making_up.is_undone = self._window, None, False
        try:
            while windows and can_be_run(windows[0]):
                left_out = making_up.skipped_steps
                making_up.run(windows[:1])
                if making_up.is_undone:
                    windows = []
                    break
                applied += making_up.applied
                if making_up.skipped_steps > left_out and self.hands_out_again:
                    making_up.left_out.pop()  # other data will take its place
                    break
                windows.pop(0)
            self.left_to_the_loop, windows = windows, []
        finally:
            self.kept.extend(windows)  # one has raised: nobody may take these for applied
            making_up.applied = applied
            self._window, self._is_judged = None if making_up.is_undone else interrupted, False
        return len(applied)

    def judge_if_needed(self) -> None:
        """Nothing: every update of a loop is judged where it is asked for."""
        self._is_judged = False

    def _is_routine_overflow(self, loss: float) -> bool:
        return has_scaler(self.trainer.accelerator) and super()._is_routine_overflow(loss)


def can_be_run(window: Window) -> bool:
    """Say whether we can run a step again ourselves: the loop has handed us its loss functions."""
    batches = window.micro_batches
    return bool(batches) and all(each.source is not None and not each.is_changed() for each in batches)


def innermost_scheduler(scheduler: Any) -> Any:
    """Return the scheduler inside of accelerate's."""
    return getattr(scheduler, "scheduler", scheduler)


def _nobody_listens(_window: Window) -> None:
    """Stand for a session that is over."""

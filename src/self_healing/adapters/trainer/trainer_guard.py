"""The guard of a step inside a Hugging Face Trainer: methods are replaced on the one trainer for the time of `train()`.

No trainer is subclassed. What the replaced methods do at each step is in `step_guard`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ...tensors.gate import GradientGate
from ...tensors.known_modules import gradients_are_plain
from ...tensors.random_state import RandomState, devices_of, draws_on
from ...tensors.skip import SkippingOptimizer
from ..step.step_buffers import StepBuffers
from ..step.step_guard import StepGuard
from ..step.trl_counters import BeforeGenerating, Counters
from ..step.window import MicroBatch, Window
from ..wrapping import Wrapping
from .flop_count import FlopCount
from .spared_walks import SparedWalks, already_training


class TrainerGuard(StepGuard):
    """The hot path of one trainer: where its loop calls the guard."""

    def __init__(self, trainer: Any, gate: GradientGate, *, acts: bool = True) -> None:
        super().__init__(trainer, gate, acts=acts)
        self.walks = SparedWalks(trainer)
        self._flops = FlopCount(trainer, self.walks.modules)
        self._wrapping = Wrapping()
        self._step_wrapping = Wrapping()
        self._prepares = False
        """True once the trainer was seen to prepare its inputs inside `training_step`."""
        self._way = "host"

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

    def step_is_done(self) -> None:
        """Look at the modules anew in the next step."""
        self.walks.step_is_done()

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

"""The guard inside a Hugging Face Trainer's step: measure, clip, skip on the device, and make up what was skipped.

Nothing is subclassed: methods are replaced on the one trainer for the time of `train()`. The device decides whether an
update is applied; the host reads that decision one step later, without waiting, and then runs the skipped step again
with the same batch, random state and learning rate. Until then the device holds back every later update too, so that
updates are applied in their order. A run whose fault was transient ends bit-identical to one without it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..tensors.gate import GradientGate
from ..tensors.random_state import RandomState
from ..tensors.skip import SkippingOptimizer
from ..tensors.telemetry import TelemetryRing
from .learning_rate import LearningRateScale
from .trl_counters import Counters
from .window import MicroBatch, Window
from .wrapping import Wrapping

logger = logging.getLogger("self_healing.trainer")

READING = ("loss", "is_sound", "is_applied", "norm", "coefficient", "z", "found_inf", "is_outlier", "typical")
"""What one row of telemetry holds, in this order."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """What the device said of one optimizer step."""

    step: int
    """Global step after the update."""
    loss: float
    is_sound: bool
    """Loss and gradients were finite."""
    is_applied: bool
    """The update was applied at once; False where it was skipped or held back behind a skipped one."""
    norm: float
    coefficient: float
    z: float
    is_outlier: bool
    rate: float


class TrainerGuard:
    """The hot path of one trainer: replaced methods, the gate, the windows that may have to be made up."""

    def __init__(self, trainer: Any, gate: GradientGate, *, acts: bool = True) -> None:
        self.trainer = trainer
        self.gate = gate
        self.acts = acts
        """False only measures: nothing is clipped, skipped or made up."""
        self.rate_scale = LearningRateScale()
        self.ring = TelemetryRing()
        self.kept: deque[Window] = deque()
        self.made_up_steps = 0
        self.skipped_steps = 0
        self.replaced_steps = 0
        self.on_unsound: Callable[[Window], None] = lambda _window: None
        """Told of a step that is unsound again when made up, before other data take its place."""
        self._wrapping = Wrapping()
        self._window: Window | None = None
        self._micro_batch: MicroBatch | None = None
        self._is_making_up = False
        self._held_back: Tensor | None = None
        self._is_judged = False
        self._prepares = False
        """True once the trainer was seen to prepare its inputs inside `training_step`."""
        self._way = "host"
        self._fetch_next: Callable[[], tuple[list[Any], Any]] | None = None
        """Fetches the data of the step after the one that was fetched last."""
        self._borrowed = 0
        """Steps' worth of data of this epoch used in the place of unsound ones."""
        self._spare: Window | None = None
        """The newest step that was applied: where an epoch has run out of data, it is used once more."""

    # -- attaching -----------------------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the methods the loop calls on its way to an update."""
        trainer, wrapping = self.trainer, self._wrapping
        wrapping.wrap(trainer, "get_batch_samples", self._around_fetch)
        wrapping.wrap(trainer, "training_step", self._around_training_step)
        wrapping.wrap(trainer, "_prepare_inputs", self._around_prepare)
        wrapping.wrap(trainer.accelerator, "clip_grad_norm_", self._around_clip)
        if self.acts:  # judged on the device instead, where it costs no wait
            wrapping.replace(trainer.args, "logging_nan_inf_filter", False)

    def attach_optimizer(self) -> str:
        """Replace the optimizer's step, once the trainer has made one; return the way a step is skipped."""
        optimizer = self.trainer.optimizer
        self._wrapping.wrap(optimizer, "step", self._around_step)
        self._way = SkippingOptimizer(optimizer).way
        return self._way

    def detach(self) -> None:
        """Put every method back."""
        for name in self._wrapping.restore():
            logger.warning("%s was replaced by somebody else during training and is left as it is", name)
        self.kept.clear()
        self._window = self._spare = self._fetch_next = None

    # -- what the loop calls -------------------------------------------------------------------------

    def _around_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            batches, num_items = original(*args, **kwargs)
            self._fetch_next = lambda: original(*args, **kwargs)
            if not batches and self._borrowed and self._spare is not None:
                self._borrowed -= 1
                batches, num_items = self._spare.inputs, self._spare.num_items
            step = self.trainer.state.global_step
            loss_sum = getattr(self.trainer, "_tr_loss", None)
            self._window = Window(
                step=step,
                num_items=num_items,
                counters=Counters.of(self.trainer),
                loss_sum=None if loss_sum is None else loss_sum.detach().clone(),
            )
            return batches, num_items

        return get_batch_samples

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self.original_training_step = original

        def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
            window = self._window
            if window is None:
                return original(model, inputs, *args, **kwargs)  # type: ignore[no-any-return]
            # Taken after the inputs are prepared, where the trainer prepares them: generation draws random numbers too.
            early = RandomState.capture() if self.acts and not self._prepares else None
            self._micro_batch = MicroBatch(inputs, early)
            window.micro_batches.append(self._micro_batch)
            try:
                loss: Tensor = original(model, inputs, *args, **kwargs)
            finally:
                self._micro_batch = None
            return self._account(window, loss)

        return training_step

    def _account(self, window: Window, loss: Tensor) -> Tensor:
        """Add a loss to its window; a non-finite one counts as zero, so that it cannot spoil the logged mean."""
        value = loss.detach()
        counted = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        window.losses.append(counted)
        # The plain sum is not finite as soon as one loss is not: one number says whether the window is sound.
        window.loss = value if window.loss is None else window.loss + value
        return counted if self.acts else loss

    def _around_prepare(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _prepare_inputs(inputs: Any) -> Any:
            micro_batch = self._micro_batch
            if micro_batch is None:
                return original(inputs)
            if self._is_making_up and micro_batch.prepared is not None:
                return micro_batch.again()
            prepared = original(inputs)
            self._prepares = True
            if self.acts:
                micro_batch.keep(prepared, RandomState.capture())
            return prepared

        return _prepare_inputs

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        accelerator = self.trainer.accelerator

        def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
            if norm_type != 2 or not self.acts:
                return original(parameters, max_norm, norm_type)
            accelerator.unscale_gradients()
            limit = None if max_norm == float("inf") else float(max_norm)
            norm = self.gate.judge([p.grad for p in parameters], limit)
            self._is_judged = True
            return norm

        return clip_grad_norm_

    def _around_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        self._optimizer_step = original

        def step(*args: Any, **kwargs: Any) -> Any:
            window, self._window = self._window, None
            if window is None or window.loss is None:
                return original(*args, **kwargs)
            return self._update(window, lambda: original(*args, **kwargs))

        return step

    def _update(self, window: Window, step: Callable[[], Any]) -> Any:
        """Apply the update unless it is unsound or an earlier one is still to be made up; never wait for the device."""
        self._judge_if_needed()
        optimizer = self.trainer.optimizer
        groups = optimizer.param_groups
        window.rates = [float(group["lr"]) for group in groups]
        loss = window.loss.reshape(()).to(self.gate.found_inf)
        unsound = torch.where(torch.isfinite(loss), self.gate.found_inf, torch.ones_like(loss))
        scaler = self.trainer.accelerator.scaler
        if not self.acts or (scaler is not None and scaler.is_enabled()):
            skip = torch.zeros_like(unsound)  # a GradScaler skips by itself, and only looks for its scale by doing so
        else:
            skip = unsound if self._held_back is None else torch.maximum(unsound, self._held_back)
        with self.rate_scale.applied(groups):
            result = SkippingOptimizer(optimizer).step_unless(skip, step)
        self._held_back = skip
        if self.acts:
            self.kept.append(window)
        head = torch.stack((loss, 1.0 - unsound, 1.0 - skip))
        self.ring.push(window.step + 1, torch.cat((head, self.gate.telemetry())))
        self._rate = window.rates[0] * self.rate_scale.value if window.rates else 0.0
        return result

    def _judge_if_needed(self) -> None:
        """Measure the gradients where the framework clips by itself and has not asked us (or is set not to clip)."""
        if not self._is_judged:
            groups = self.trainer.optimizer.param_groups
            clipping, self.gate.clip_outliers = self.gate.clip_outliers, False
            self.gate.judge([p.grad for group in groups for p in group["params"]], None)
            self.gate.clip_outliers = clipping
        self._is_judged = False

    # -- reading what the device said ----------------------------------------------------------------

    def readings(self, *, wait: bool) -> Iterator[StepReading]:
        """Yield what is known of finished steps, and make up the skipped ones before the next is begun."""
        rows = self.ring.drain() if wait else self.ring.ready()
        for step, values in rows:
            row = dict(zip(READING, values, strict=True))
            reading = StepReading(
                step=step, loss=row["loss"], is_sound=row["is_sound"] > 0.5, is_applied=row["is_applied"] > 0.5,
                norm=row["norm"], coefficient=row["coefficient"], z=row["z"], is_outlier=row["is_outlier"] > 0.5,
                rate=self._rate,
            )  # fmt: skip
            if self.acts and reading.is_applied and self.kept:
                self._spare = self.kept.popleft()
            yield reading

    def make_up(self) -> int:
        """Run the steps that were skipped or held back again, in their order; return how many were applied."""
        rest = self.ring.drain()  # an incident: waiting is cheap now, and nothing later may overtake
        assert all(values[2] < 0.5 for _, values in rest), "an update was applied behind a skipped one"
        windows = list(self.kept)
        self.kept.clear()
        self._held_back = None
        now = RandomState.capture()
        interrupted = self._window
        applied = 0
        if windows:  # what the first attempts counted is forgotten, and counted again as they are made up
            windows[0].counters.restore(self.trainer)
            if windows[0].loss_sum is not None:
                self.trainer._tr_loss.copy_(windows[0].loss_sum)  # noqa: SLF001  # the trainer's own sum
        for window in windows:
            applied += self._apply(window)
        self._window = interrupted
        now.restore()
        self.made_up_steps += applied
        return applied

    def _apply(self, window: Window) -> bool:
        """Apply a skipped step, with other data if its own are unsound every time; say whether it was applied."""
        if self._run_again(window):
            self._spare = window
            return True
        self.on_unsound(window)
        for replacement in self._replacements(window):
            if self._run_again(replacement):
                self.replaced_steps += 1
                self._spare = replacement
                return True
        self.skipped_steps += 1
        return False

    def _replacements(self, window: Window) -> Iterator[Window]:
        """Yield other data for a step: what comes next, else what was used last."""
        batches, num_items = self._fetch_next() if self._fetch_next is not None else ([], None)
        if batches:
            self._borrowed += 1
            yield self._with_data(window, batches, num_items)
        if self._spare is not None:
            yield self._with_data(window, self._spare.inputs, self._spare.num_items)

    def _with_data(self, window: Window, batches: list[Any], num_items: Any) -> Window:
        state = RandomState.capture()
        fresh = [MicroBatch(inputs, state) for inputs in batches]
        return replace(window, micro_batches=fresh, num_items=num_items)

    def _run_again(self, window: Window) -> bool:
        """Do one step anew; return whether it was sound and has been applied."""
        trainer = self.trainer
        model = trainer.model_wrapped
        model.zero_grad()
        steps_before = trainer.current_gradient_accumulation_steps
        trainer.current_gradient_accumulation_steps = len(window.micro_batches)
        window.loss = None
        window.losses = []
        self._is_making_up = True
        try:
            for place, micro_batch in enumerate(window.micro_batches):
                self._pass(model, window, micro_batch, is_last=place == len(window.micro_batches) - 1)
            self._clip(model)
        finally:
            self._is_making_up = False
            self._micro_batch = None
            trainer.current_gradient_accumulation_steps = steps_before
        if not bool(torch.isfinite(window.loss).all()) or bool(self.gate.found_inf):
            model.zero_grad()
            return False
        self._step_at(window.rates)
        if window.loss_sum is not None:
            for loss in window.losses:  # one by one: the sum must round as it does in the loop
                trainer._tr_loss += loss  # noqa: SLF001
        model.zero_grad()
        return True

    def _pass(self, model: Any, window: Window, micro_batch: MicroBatch, *, is_last: bool) -> None:
        trainer = self.trainer
        trainer.accelerator.gradient_state._set_sync_gradients(is_last)  # noqa: SLF001  # as the loop does itself
        self._micro_batch = micro_batch
        micro_batch.random_state.restore()
        with nullcontext() if is_last else trainer.accelerator.no_sync(model=model):
            self._account(window, self.original_training_step(model, micro_batch.inputs, window.num_items))

    def _clip(self, model: Any) -> None:
        limit = self.trainer.args.max_grad_norm
        self.trainer.accelerator.clip_grad_norm_(model.parameters(), limit if limit > 0 else float("inf"))
        self._is_judged = False

    def _step_at(self, rates: list[float]) -> None:
        groups = self.trainer.optimizer.param_groups
        now = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        try:
            with self.rate_scale.applied(groups):
                self._optimizer_step()
        finally:
            for group, rate in zip(groups, now, strict=True):
                group["lr"] = rate

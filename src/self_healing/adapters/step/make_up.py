"""Steps that were skipped are run again: with the same data, random numbers and learning rate, in their order.

A step that is sound now was hit by something transient, and the run goes on as if nothing had happened. One that is
unsound every time takes other data, so that the number of updates and the schedule stay as planned.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .trl_counters import Counters, count_again, generates_for_several_steps, step_counters
from .update_numbers import UpdateNumbers
from .window import MicroBatch, Window

if TYPE_CHECKING:
    from .step_guard import StepGuard


@dataclass(frozen=True, slots=True)
class AppliedStep:
    """A step that was made up."""

    step: int
    """Global step after the update."""
    loss: float
    norm: float
    numbers: UpdateNumbers
    """By what each parameter group stepped."""


class MakeUp:
    """Makes skipped steps up, and counts what came of them."""

    def __init__(self, guard: StepGuard) -> None:
        self.guard: StepGuard = weakref.proxy(guard)  # which holds this; a circle would outlive the training
        self.trainer = guard.trainer
        self.may_replace = True
        """False leaves a step out that is unsound every time, instead of taking other data for it."""
        self.on_unsound: Callable[[Window], bool] = _nothing_helps
        """Told of a step that is unsound again, before other data take its place; says whether it is sound by now."""
        self.made_up_steps = 0
        self.left_out: list[int] = []
        """The steps that were left out for good, as far as the run has not returned to before them."""
        self.replaced: list[int] = []
        """Likewise those that were trained with other data."""
        self.applied: list[AppliedStep] = []
        """What the newest call of `run` has applied."""
        self.is_running = False
        self.is_undone = False
        """The run was put back to an earlier state meanwhile: what is left to be made up has not happened."""
        self.fetch_next: Callable[[], tuple[list[Any], Any]] | None = None
        """Fetches the data of the step after the one that was fetched last."""
        self.spare: Window | None = None
        """The newest step that was applied: where an epoch has run out of data, it is used once more."""
        self.borrowed = 0
        """Micro-batches of this epoch used in the place of unsound ones."""

    def run(self, windows: list[Window]) -> int:
        """Run these steps again, in their order; return how many were applied. Where one raises, it and those behind it are left."""
        from ...tensors.random_state import RandomState

        guard, trainer = self.guard, self.trainer
        now = RandomState.capture()
        counted_steps = step_counters(trainer)
        self.applied, self.is_undone = [], False
        if windows:  # what the first attempts counted is forgotten, and counted again as they are made up
            windows[0].counters.restore(trainer)
            guard.loss_sum.set_back(windows[0].loss_sum)
            guard.buffers.put_back(windows[0].buffers)
        try:
            while windows:
                windows[0].buffers = guard.buffers.before_step()
                self._apply(windows[0])
                if self.is_undone:
                    windows.clear()
                    break
                del windows[0]
        finally:  # also where one has raised: whoever saves now, or tries once more, goes on from here
            if not self.is_undone:
                vars(trainer).update(counted_steps)
                now.restore()
            self.made_up_steps += len(self.applied)
        return len(self.applied)

    @property
    def skipped_steps(self) -> int:
        """How many steps were left out for good."""
        return len(self.left_out)

    @property
    def replaced_steps(self) -> int:
        """How many were trained with other data."""
        return len(self.replaced)

    def begins_at(self, step: int) -> None:
        """Take note that training goes on from a step: those after it are trained anew, whatever became of them."""
        self.applied = [each for each in self.applied if each.step <= step]
        self.left_out = [each for each in self.left_out if each <= step]
        if self.may_replace:  # else a loop was given other data, and is given them again
            self.replaced = [each for each in self.replaced if each <= step]

    def data_for_the_rest_of_the_epoch(self, missing: int) -> list[Any]:
        """Return micro-batches for a step whose own were used earlier in the epoch, in the place of unsound ones."""
        count = min(missing, self.borrowed)
        if count <= 0 or self.spare is None:
            return []
        self.borrowed -= count
        return list(itertools.islice(itertools.cycle(self.spare.inputs), count))

    def forget(self) -> None:
        """Let go of data, of the loader and of whom it told."""
        self.spare = self.fetch_next = None
        self.on_unsound = _nothing_helps

    def _apply(self, window: Window) -> None:
        """Apply a skipped step, with other data if its own are unsound every time."""
        if self._run_again(window):
            self.spare = window
            return
        is_sound_now = self.on_unsound(window)
        if self.is_undone:
            return
        if is_sound_now and self._run_again(window):
            self.spare = window
            return
        may_replace = self.may_replace and not generates_for_several_steps(self.trainer)
        for replacement in self._replacements(window) if may_replace else ():
            if self._run_again(replacement):
                self.replaced.append(window.step + 1)
                self.spare = replacement
                return
        self.left_out.append(window.step + 1)

    def _replacements(self, window: Window) -> Iterator[Window]:
        """Yield other data for a step: what comes next, else what was used last."""
        batches, num_items = self.fetch_next() if self.fetch_next is not None else ([], None)
        if batches:
            self.borrowed += len(batches)
            yield _with_data(window, batches, num_items)
        if self.spare is not None:
            yield _with_data(window, self.spare.inputs, self.spare.num_items)

    def _run_again(self, window: Window) -> bool:
        """Do one step anew; return whether it was sound and has been applied."""
        guard, trainer = self.guard, self.trainer
        model = trainer.model_wrapped
        guard.zero_grad()
        steps_before = getattr(trainer, "current_gradient_accumulation_steps", 1)
        trainer.current_gradient_accumulation_steps = len(window.micro_batches)
        window.loss = None
        window.losses = []
        counters = Counters.of(trainer)
        self.is_running = True
        try:
            for place, micro_batch in enumerate(window.micro_batches):
                self._pass(model, window, micro_batch, place)
            guard.clip()
            guard.judge_if_needed()
        finally:
            self.is_running = False
            trainer.current_gradient_accumulation_steps = steps_before
        if guard.is_unsound(window):
            counters.restore(trainer)
            guard.buffers.put_back(window.buffers)
            guard.zero_grad()
            return False
        numbers = replace(window.numbers, scale=guard.rate_scale.value)
        self.applied.append(AppliedStep(window.step + 1, float(window.loss), float(guard.gate.norm), numbers))
        groups = trainer.optimizer.param_groups
        with window.numbers.applied(groups), guard.rate_scale.applied(groups):
            guard.optimizer_step()
        for loss in window.losses:
            guard.loss_sum.add(loss)
        guard.zero_grad()
        return True

    def _pass(self, model: Any, window: Window, micro_batch: MicroBatch, place: int) -> None:
        trainer = self.trainer
        is_last = place == len(window.micro_batches) - 1
        trainer.accelerator.gradient_state._set_sync_gradients(is_last)  # noqa: SLF001  # as the loop does itself
        count_again(trainer, micro_batch.counted)  # the inputs are not prepared again
        micro_batch.random_state.restore()
        with nullcontext() if is_last else trainer.accelerator.no_sync(model=model):
            self.guard.run_micro_batch(model, window, micro_batch, place)


def _nothing_helps(_window: Window) -> bool:
    """Stand for whoever could do something about a step that is unsound every time."""
    return False


def _with_data(window: Window, batches: list[Any], num_items: Any) -> Window:
    from ...tensors.random_state import RandomState

    state = RandomState.capture()
    return replace(window, micro_batches=[MicroBatch(inputs, state) for inputs in batches], num_items=num_items)

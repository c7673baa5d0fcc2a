"""The same loop without a guard: `mode = "off"` leaves everything to torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from .stand_in import LoopStandIn


class UnguardedStep:
    """A block that runs backward and updates as a plain loop does."""

    def __init__(self, run: UnguardedRun, batch: Any, *, commit: bool | None) -> None:
        self._run = run
        self._batch = batch
        self._commit = commit
        self._has_run = False
        self._loss: Tensor | None = None
        self.extras: tuple[Any, ...] = ()
        self.is_void = False

    def __enter__(self) -> Self:
        return self

    @property
    def loss(self) -> Tensor:
        """The loss of this batch, without its graph; NaN where there is none."""
        return torch.tensor(float("nan")) if self._loss is None else self._loss

    @loss.setter
    def loss(self, value: Tensor) -> None:
        self._loss = value.detach()

    def backward(self, loss: Any, *batch: Any) -> Tensor:
        """Run backward from a loss, or from what a function makes of the batch."""
        stand_in = self._run.stand_in
        if not isinstance(loss, Tensor):
            loss = loss(*(batch or (self._batch,)))
            if isinstance(loss, tuple | list):
                loss, *more = loss
                self.extras = tuple(more)
        stand_in.backward_from(loss)
        self._has_run, self._loss = True, loss.detach()
        return self._loss

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._has_run and self._commit is not False:
            self._run.ran()


class UnguardedRun:
    """What `guard` returns where healing is switched off."""

    def __init__(
        self, stand_in: LoopStandIn, dataloader: Any, *, max_grad_norm: float | None, steps_scheduler: bool
    ) -> None:
        self.stand_in = stand_in
        self._dataloader = dataloader
        self._limit = max_grad_norm
        self._steps_scheduler = steps_scheduler
        self._pieces = 0
        self.step_number = 0
        self.epoch = -1
        self.should_stop = False

    def batches(self, loader: Any = None) -> Any:
        """Return the loader itself."""
        self.epoch += 1
        return self._dataloader if loader is None else loader

    def step(self, batch: Any = None, *, commit: bool | None = None) -> UnguardedStep:
        """Return a block around one batch."""
        return UnguardedStep(self, batch, commit=commit)

    def ran(self) -> None:
        """Update, once gradients of all blocks are there."""
        self._pieces += 1
        stand_in = self.stand_in
        if self._pieces < stand_in.current_gradient_accumulation_steps:
            return
        self._pieces = 0
        optimizer, scaler = stand_in.optimizer, getattr(stand_in.accelerator, "scaler", None)
        if scaler is not None:
            scaler.unscale_(optimizer)
        if self._limit is not None:
            torch.nn.utils.clip_grad_norm_(stand_in.model_wrapped.parameters(), self._limit)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if stand_in.lr_scheduler is not None and self._steps_scheduler:
            stand_in.lr_scheduler.step()
        self.step_number += 1

    def close(self) -> None:
        """Nothing was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was opened."""

    def figures(self) -> dict[str, float]:
        """Return nothing: nothing was counted."""
        return {}

    def observe(self, values: Mapping[str, float]) -> None:
        """Look at nothing."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Go around an evaluation."""
        yield

    def save_checkpoint(self) -> str:
        """Write nothing, and say so."""
        return "healing is switched off: no checkpoint was written"

    def on_instability(self, hook: Callable[..., object] | str, kind: str | None = None) -> None:
        """Ask nobody."""

"""The same loop without a guard: `mode = "off"` leaves everything to torch, but for the checkpoints that were asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from .feed import Feed
from .going_on import NOT_TOGETHER, checkpoint_asked_for, enter_from
from .loop_returns import LoopReturns, Stood
from .saving import write_now
from .stand_in import LoopStandIn

logger = logging.getLogger("self_healing.loop")


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

    is_over = False

    def __init__(
        self,
        stand_in: LoopStandIn,
        dataloader: Any,
        *,
        max_grad_norm: float | None,
        steps_scheduler: bool,
        save_every: int | None = None,
        also: tuple[Any, ...] = (),
        resume: str | bool | Path | None = None,
    ) -> None:
        self.stand_in = self.trainer = stand_in
        self.also = also
        self.returns = LoopReturns(stand_in)
        """Hands out the batches where checkpoints are to say how far they were."""
        self.unfinished: Stood | None = None
        self._dataloader = dataloader
        self._limit = max_grad_norm
        self._steps_scheduler = steps_scheduler
        self._is_alone = stand_in.args.world_size == 1
        self._save_every = save_every if self._is_alone else None
        self._resume = resume
        if save_every is not None and not self._is_alone:
            logger.warning(NOT_TOGETHER, f"save_every={save_every}")
        self._pieces = 0
        self._saved: int | None = None
        self._has_begun = False
        self._counting: Any = None
        """Counts the updates of a loop that may step its optimizer itself."""
        self.epoch = -1
        self.should_stop = False

    @property
    def step_number(self) -> int:
        """Updates so far."""
        return int(self.stand_in.state.global_step)

    def batches(self, loader: Any = None) -> Any:
        """Return the loader itself, or what keeps count of it for the checkpoints that were asked for."""
        self._begin()
        self.epoch += 1
        loader = self._dataloader if loader is None else loader
        return Feed(self, loader) if self._keeps_count else loader

    def step(self, batch: Any = None, *, commit: bool | None = None) -> UnguardedStep:
        """Return a block around one batch."""
        self._begin()
        if self.returns.is_between:
            self._save_where_due()
        return UnguardedStep(self, batch, commit=commit)

    # -- checkpoints ---------------------------------------------------------------------------------

    @property
    def _keeps_count(self) -> bool:
        return self._is_alone and (self._save_every is not None or bool(self._resume))

    def _begin(self) -> None:
        """Go on from the checkpoint that was asked for, before the first batch or step."""
        if self._has_begun:
            return
        self._has_begun = True
        asked = checkpoint_asked_for(self.stand_in, self._resume)
        if asked is not None and enter_from(self, asked):
            self._saved = self.step_number
        optimizer = getattr(self.stand_in.optimizer, "optimizer", self.stand_in.optimizer)  # inside of accelerate's
        if self._keeps_count and hasattr(optimizer, "register_step_post_hook"):
            self._counting = optimizer.register_step_post_hook(self._updated)

    def _updated(self, *_: object) -> None:
        self.stand_in.state.global_step += 1

    def _save_where_due(self) -> None:
        step = self.step_number
        if self._save_every is not None and step and step % self._save_every == 0 and step != self._saved:
            logger.info("%s", self.save_checkpoint())

    def enter_epoch(self, loader: Any) -> bool:
        """Begin an epoch of a loader; False where it was trained by an earlier process."""
        return self.returns.enter(loader)

    def next_batch(self) -> tuple[bool, Any]:
        """Return whether there is a batch, and the batch; a checkpoint that is due is written before."""
        if not self._pieces:
            self._save_where_due()
            self.returns.begin_step()
        try:
            return True, self.returns.fetch()
        except StopIteration:
            return False, None

    def leave_epoch(self) -> None:
        """Note that the loop is behind an epoch, or has left it."""
        self.returns.leave()

    def note(self, _name: str, text: str, *, level: int = logging.WARNING) -> None:
        """Say it in the log: there is no ledger."""
        logger.log(level, "%s", text)

    def save_checkpoint(self) -> str:
        """Write a checkpoint of the newest update now, between two steps; return what came of it in a sentence."""
        if not self._is_alone:
            return "healing is switched off: several processes write no checkpoint together"
        write_now(self)
        self._saved = self.step_number
        return f"checkpoint-{self.step_number} was written"

    # -- steps ---------------------------------------------------------------------------------------

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
        if self._counting is None:
            self._updated()

    def close(self) -> None:
        """Let go of what was counted."""
        self.returns.end()
        if self._counting is not None:
            self._counting.remove()
            self._counting = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def figures(self) -> dict[str, float]:
        """Return nothing: nothing was counted."""
        return {}

    def observe(self, values: Mapping[str, float]) -> None:
        """Look at nothing."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Go around an evaluation."""
        yield

    def on_instability(self, hook: Callable[..., object] | str, kind: str | None = None) -> None:
        """Ask nobody."""

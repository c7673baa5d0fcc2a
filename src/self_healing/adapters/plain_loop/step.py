"""One step of a loop: what `with run.step(batch) as s` gives."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from .batch_fields import BatchFields
from .stand_in import LossSource

if TYPE_CHECKING:
    from .session import PlainSession

NOTHING_TO_APPLY = (
    "nothing was run backward in this step: call s.backward(loss_fn, batch), or run backward and step the optimizer "
    "yourself, or leave out commit=True"
)


class Step:
    """A block around one batch: what is raised in it is healed or reported, and its update applied when it is left."""

    def __init__(self, session: PlainSession, batch: Any = None, *, commit: bool | None = None) -> None:
        self._session = session
        self._batch = batch
        self._commit = commit
        self._updates = 0
        self._has_run = False
        self._loss: Tensor | None = None
        self.extras: tuple[Any, ...] = ()
        """What the loss function returned besides the loss."""
        self.is_void = False
        """The step has raised and will be done again: nothing of this time counts."""

    def __enter__(self) -> Self:
        self._updates = self._session.guard.steps_done
        self._session.begin_block()
        return self

    @property
    def loss(self) -> Tensor:
        """The loss of this batch, without its graph; NaN where the step was not computed.

        A loop that runs backward itself may set it before it steps the optimizer, so that rules have a loss to look at.
        """
        return torch.tensor(float("nan")) if self._loss is None else self._loss

    @loss.setter
    def loss(self, value: Tensor) -> None:
        self._loss = value.detach()
        self._session.guard.saw_loss(self._loss)

    def backward(self, loss: Any, *batch: Any) -> Tensor:
        """Compute a loss and run backward from it; return its value, without its graph.

        Args:
            loss: A function of the batch that returns the loss, or a tuple that begins with it: it can be called again,
                in pieces where memory runs out, or later where its update was not finite. Or a tensor.
            batch: What the function is called with; the batch of the step where nothing is given.

        """
        self._has_run = True
        if isinstance(loss, Tensor):
            if batch:
                raise TypeError("s.backward(loss) takes no batch with a loss that is computed already")
            return self._backward_from(loss)
        if not callable(loss):
            raise TypeError(f"s.backward wants a loss function or a loss, not {type(loss).__name__}")
        given = batch or ((self._batch,) if self._batch is not None else ())
        if not given:
            raise TypeError("s.backward(loss_fn, batch): the batch is missing, here or in run.step(batch)")
        is_one = len(given) == 1
        source = LossSource(loss, BatchFields(given[0] if is_one else given), is_one)
        self._session.guard.run(source)
        self.extras = source.extras
        assert source.value is not None, "a pass that has ended has a loss"
        self._loss = source.value
        return self._loss

    def _backward_from(self, loss: Tensor) -> Tensor:
        share = self._session.trainer.backward_from(loss)
        self._loss = loss.detach()
        self._session.guard.saw_loss(share)
        return self._loss

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        session = self._session
        guard = session.guard
        if error is not None:
            self.is_void = session.raised_in_step(error)
            return self.is_void
        has_stepped = guard.steps_done > self._updates
        if not self._has_run and not has_stepped and self._commit:
            raise RuntimeError(NOTHING_TO_APPLY)
        if not self._has_run:
            return False
        if not has_stepped and self._commit is not False and session.is_complete():
            guard.commit()
        return False

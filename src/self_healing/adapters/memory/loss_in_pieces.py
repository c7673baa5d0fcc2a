"""One micro-batch in pieces: a `compute_loss` that runs all pieces but the last forward and backward by itself.

The trainer's own `training_step` stays in charge: it gets the last piece's loss plus the value of the others, does the last
backward pass as always, and its side effects happen once. A piece that runs out of memory is cut in two; the pieces
before it are done and stay done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..family import family_of
from ..step.trl_counters import Counters
from ..wrapping import Wrapping
from .batch_cuts import Weight
from .gradient_marks import GradientMarks, SetAside
from .known_losses import LossRule, loss_rule
from .loss_weights import NO_LABEL, WeightFinder, label_counts, piece_weight
from .piece_metrics import PieceMetrics
from .whole_batch_baseline import WholeBatchBaseline

if TYPE_CHECKING:
    from ...tensors.random_state import RandomState


class CannotSplitError(Exception):
    """The micro-batch cannot be cut without changing its gradient; the message says why."""


class LossInPieces:
    """The pieces of one micro-batch, done and to do."""

    def __init__(self, trainer: Any, parameters: Iterable[Any], finder: WeightFinder, num_items: Any) -> None:
        self.trainer = trainer
        self.has_begun = False
        """A piece was begun, so that a failure is undone by `failed`."""
        self._parameters = list(parameters)
        self._finder = finder
        self._num_items = num_items
        self._rule: LossRule | None = None
        self._weight: Weight | None = None
        self._counts: list[int] | None = None
        self._baseline: WholeBatchBaseline | None = None
        self._most_rows = 1
        self._rows_run = 0
        self._start = 0
        """The first row that is not done."""
        self._end = 0
        """The row after the piece that is being run."""
        self._part: dict[str, Any] = {}
        self._sum: Any = None
        self._metrics: PieceMetrics | None = None
        self._marks = GradientMarks(())
        self._counters = Counters()
        self._random: RandomState | None = None
        self._aside: list[tuple[int, SetAside]] = []
        """Gradients complete up to a row, which were ahead of the others when a piece failed."""

    @property
    def passes(self) -> float:
        """Forward passes so far, in units of the whole micro-batch; failed pieces and the search for weights count."""
        return self._rows_run / self._rule.layout.rows if self._rule is not None else 0.0

    def attempt(self, run: Callable[[], Any], most_rows: int) -> Any:
        """Call `run`, which calls the trainer's step, with the loss in pieces of so many rows; return what it does."""
        self._most_rows = most_rows
        if self._baseline is not None:
            self._baseline.most_rows = most_rows
        wrapping = Wrapping()
        wrapping.wrap(self.trainer, "compute_loss", self._around_compute_loss)
        baseline = family_of(self.trainer).whole_batch_call
        if baseline and hasattr(self.trainer, baseline):
            wrapping.wrap(self.trainer, baseline, self._around_baseline)
        try:
            result = run()
        finally:
            wrapping.restore()
        self._piece_done()
        self.give_up()
        if self._metrics is not None:
            self._metrics.fold()
        return result

    def failed(self) -> None:
        """Undo the piece that ran out of memory."""
        self._aside.append((self._end, self._marks.undo()))
        self._counters.restore(self.trainer)
        if self._random is not None:
            self._random.restore()
        self._part = {}

    def give_up(self) -> None:
        """Put all complete gradients back."""
        while self._aside:
            self._aside.pop()[1].put_back()

    # -- inside the trainer's step -------------------------------------------------------------------

    def _around_compute_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compute_loss(
            model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **more: Any
        ) -> Any:
            if return_outputs or not model.training:  # not the training loss: somebody evaluates in between
                return original(model, inputs, return_outputs, num_items_in_batch, **more)

            def loss_of(part: dict[str, Any]) -> Any:
                return original(model, part, num_items_in_batch=num_items_in_batch, **more)

            rule = self._weigh(loss_of, inputs)
            while True:
                is_last = self._begin_piece(rule, inputs)
                with nullcontext() if is_last else self.trainer.accelerator.no_sync(model):
                    loss = self._weighted(rule, loss_of(dict(self._part)))
                    if is_last:
                        return loss if self._sum is None else loss + self._sum
                    self._backward(loss, num_items_in_batch)
                self._sum = loss.detach() if self._sum is None else self._sum + loss.detach()
                del loss
                self._piece_done()

        return compute_loss

    def _around_baseline(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def for_the_whole_batch(*args: Any) -> Any:
            return original(*args) if self._baseline is None else self._baseline.answer(original, *args)

        return for_the_whole_batch

    def _weigh(self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any]) -> LossRule:
        """Find out how the batch is cut and what its pieces count for, once."""
        if self._rule is not None:
            return self._rule
        rule = loss_rule(self.trainer, inputs, num_items=self._num_items)
        if isinstance(rule, str):
            raise CannotSplitError(rule)
        self._weight = rule.weight
        if rule.weight is None:
            before = self._finder.rows_run
            with self.trainer.accelerator.no_sync(self.trainer.model_wrapped):  # passes that no other process makes
                found = self._finder.find(loss_of, inputs, rule.layout)
            self._rows_run += self._finder.rows_run - before
            if isinstance(found, str):
                raise CannotSplitError(found)
            self._weight, self._counts = found
        elif rule.weight is Weight.LABELS:
            self._counts = label_counts(inputs, rule.layout)
            if self._counts is None or min(self._counts) == 0:
                raise CannotSplitError(NO_LABEL)
        if rule.family.whole_batch_call:
            self._baseline = WholeBatchBaseline(rule.layout, dict(inputs), self._most_rows)
        self._metrics = PieceMetrics(self.trainer, rule.family)
        self._rule = rule
        return rule

    def _begin_piece(self, rule: LossRule, inputs: Mapping[str, Any]) -> bool:
        """Note where everything stands and take the next rows; say whether they are the last."""
        from ...tensors.random_state import RandomState

        while self._aside and self._aside[-1][0] <= self._start:  # the others have caught up with these
            self._aside.pop()[1].put_back()
        self._end = min(self._start + self._most_rows, rule.layout.rows)
        self._marks = GradientMarks(self._parameters)
        self._counters = Counters.of(self.trainer)
        self._random = RandomState.capture()
        self._part = rule.layout.part(inputs, self._start, self._end)
        self._rows_run += self._end - self._start
        if self._baseline is not None:
            self._baseline.piece_begins()
        self.has_begun = True
        return self._end == rule.layout.rows

    def _weighted(self, rule: LossRule, loss: Any) -> Any:
        assert self._weight is not None, "weighed before the first piece"
        weight = piece_weight(self._weight, self._counts, self._start, self._end, rule.layout.rows)
        return loss if weight == 1.0 else loss * weight

    def _backward(self, loss: Any, num_items: Any) -> None:
        """Do what the trainer's step does with a loss."""
        import torch

        trainer = self.trainer
        if not _is_scaled(trainer, num_items):
            loss = loss / trainer.current_gradient_accumulation_steps
        # The trainer's backward pass runs outside the context of its loss, in which casting may be on.
        with torch.autocast(loss.device.type, enabled=False):
            trainer.accelerator.backward(loss)

    def _piece_done(self) -> None:
        if self._metrics is not None:
            self._metrics.piece_done(self._part, self._end - self._start)
        self._start = self._end
        self._part = {}


def _is_scaled(trainer: Any, num_items: Any) -> bool:
    """Say whether the loss is divided by the number of micro-batches already, as the trainer decides it."""
    known = getattr(trainer, "loss_is_scaled_for_ga", None)
    if known is not None:
        return bool(known)
    return (trainer.model_accepts_loss_kwargs and num_items is not None) or trainer.compute_loss_func is not None

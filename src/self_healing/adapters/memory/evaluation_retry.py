"""Out of memory in evaluation: the batch is evaluated in pieces that give the same metrics, or the loop with half the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..step.trl_counters import Counters, metric_lists
from ..wrapping import Wrapping
from .batch_cuts import Layout, Weight, shape_of
from .known_losses import LossRule, loss_rule
from .loss_in_pieces import CannotSplitError
from .loss_weights import NO_LABEL, WeightFinder, label_counts, piece_weight, tolerance
from .memory_errors import RETRIABLE, is_out_of_memory, let_go
from .memory_events import EventKind, MemoryEvent
from .memory_plan import PLAIN, Choice, Ladder, MemoryPlan, Shape, Tactic
from .piece_metrics import PieceMetrics
from .whole_batch_baseline import WholeBatchBaseline

logger = logging.getLogger("self_healing.memory")

SAME_LOSS = 0.1
"""Losses this part of the error of a gradient apart are the same: 1e-5 in float32."""

_PieceLoss = tuple[int, int, Any]
"""The first row of a piece, the row after it, and its loss."""


class EvaluationRetry:
    """Gets the evaluations of one trainer through when memory runs out."""

    def __init__(self, trainer: Any, *, on_event: Callable[[MemoryEvent], None] = lambda _event: None) -> None:
        self.trainer = trainer
        self.on_event = on_event
        self.plan = MemoryPlan()
        self._finder = WeightFinder(trainer, has_gradients=False)
        self._batch_that_fits: int | None = None

    def attach(self, wrapping: Wrapping) -> None:
        """Replace `prediction_step` and `evaluate`; they are the originals again when `wrapping` is restored."""
        wrapping.wrap(self.trainer, "prediction_step", self._around_prediction_step)
        wrapping.wrap(self.trainer, "evaluate", self._around_evaluate)

    # -- one batch -----------------------------------------------------------------------------------

    def _around_prediction_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prediction_step(model: Any, inputs: Any, prediction_loss_only: bool, *args: Any, **kwargs: Any) -> Any:
            def predict(part: Any, loss_only: bool) -> Any:
                return original(model, part, loss_only, *args, **kwargs)

            return self._get_through(predict, inputs, prediction_loss_only)

        return prediction_step

    def _get_through(self, predict: Callable[[Any, bool], Any], inputs: Any, loss_only: bool) -> Any:
        """Return the answers for a batch, in pieces that are small enough."""
        shape = Shape(*shape_of(inputs))
        # Without gradients there is nothing to checkpoint, and an evaluation is too short to grow back in.
        ladder = Ladder(shape.rows, can_checkpoint=False, can_split=True)
        tactic = self.plan.choose(shape, 0, ladder).tactic
        before = Counters.of(self.trainer, "eval")
        failure: Exception | None = None
        while True:
            try:
                if tactic.most_rows is None:
                    return predict(_copy(inputs), loss_only)
                answer = self._in_pieces(predict, inputs, tactic.most_rows, loss_only)
            except CannotSplitError as error:
                before.restore(self.trainer)
                if failure is not None:
                    raise failure from error
                tactic = PLAIN
                continue
            except RETRIABLE as error:
                if not is_out_of_memory(error):
                    raise
                failure = error
            else:
                if failure is not None:
                    self._learn(shape, tactic, ladder)
                return answer
            before.restore(self.trainer)
            tactic = self._smaller(failure, inputs, shape, tactic)

    def _smaller(self, failure: Exception, inputs: Any, shape: Shape, tactic: Tactic) -> Tactic:
        """Return the next tactic; raise the failure again where there is none."""
        text = f"out of memory in evaluation, with a batch of {shape} ({tactic}): {failure}"
        self._tell("out-of-memory", tactic, text)
        failure.add_note(f"self-healing: first raised at\n{let_go(failure)}")
        rule = loss_rule(self.trainer, inputs, num_items=None)
        ladder = Ladder(0 if isinstance(rule, str) else rule.layout.rows, can_checkpoint=False, can_split=True)
        stronger = ladder.stronger(tactic) if ladder.rows else None
        if stronger is None:
            raise failure
        return stronger

    def _learn(self, shape: Shape, tactic: Tactic, ladder: Ladder) -> None:
        """Remember what got a batch through."""
        self.plan.needed(shape, 0, tactic, Choice(PLAIN), ladder)
        self._tell("recovered", tactic, f"a batch of {shape} was evaluated in {tactic}")

    def _in_pieces(self, predict: Callable[[Any, bool], Any], inputs: Any, most_rows: int, loss_only: bool) -> Any:
        rule = loss_rule(self.trainer, inputs, num_items=None)
        if isinstance(rule, str):
            raise CannotSplitError(rule)
        layout = rule.layout
        metrics = PieceMetrics(self.trainer, rule.family, "eval")
        baseline = WholeBatchBaseline(layout, inputs, most_rows)
        losses: list[_PieceLoss] = []
        answers = []
        for start in range(0, layout.rows, most_rows):
            end = min(start + most_rows, layout.rows)
            part = layout.part(inputs, start, end)
            with self._whole_baseline(baseline, rule):
                piece_loss, *answer = predict(dict(part), loss_only)
            metrics.piece_done(part, end - start)
            answers.append(answer)
            if piece_loss is not None:  # None for batches without labels: predictions are all there is
                losses.append((start, end, piece_loss))
        loss = self._added_up(losses, lambda part: predict(part, True)[0], inputs, rule) if losses else None
        metrics.fold()
        return (loss, *(_joined(list(column), layout) for column in zip(*answers, strict=True)))

    def _added_up(
        self,
        losses: list[_PieceLoss],
        loss_of: Callable[[dict[str, Any]], Any],
        inputs: Mapping[str, Any],
        rule: LossRule,
    ) -> Any:
        """Return the loss of the whole batch.

        Without gradients not every way to add up rows can be told from every other; those that cannot must agree.
        """
        if sum(end - start for start, end, _ in losses) != rule.layout.rows:
            raise CannotSplitError("some rows have a loss and some have none")
        sums = [
            sum(loss * piece_weight(weight, counts, start, end, rule.layout.rows) for start, end, loss in losses)
            for weight, counts in self._weights(loss_of, inputs, rule)
        ]
        values = [float(value.mean()) for value in sums] if len(sums) > 1 else []
        if values and max(values) - min(values) > SAME_LOSS * tolerance(self.trainer) * max(map(abs, values)):
            raise CannotSplitError(f"how the rows add up cannot be told: the loss may be any of {values}")
        return sums[0]

    @contextmanager
    def _whole_baseline(self, baseline: WholeBatchBaseline, rule: LossRule) -> Iterator[None]:
        wrapping = Wrapping()
        baseline.piece_begins()
        name = rule.family.whole_batch_call
        if name and hasattr(self.trainer, name):
            wrapping.wrap(self.trainer, name, lambda original: partial(baseline.answer, original))
        try:
            yield
        finally:
            wrapping.restore()

    def _weights(
        self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any], rule: LossRule
    ) -> list[tuple[Weight, list[int] | None]]:
        """Find what the loss of a piece may count for; each piece is normalised by itself, so none is a plain sum."""
        if rule.weight is None:
            found = self._finder.possible(loss_of, inputs, rule.layout)
            if isinstance(found, str):
                raise CannotSplitError(found)
            return [(way.weight, list(way.amounts)) for way in found]
        counts = label_counts(inputs, rule.layout) if rule.weight is Weight.LABELS else None
        if counts is not None and min(counts) == 0:
            raise CannotSplitError(NO_LABEL)
        return [(rule.weight, counts)]

    # -- the whole loop ------------------------------------------------------------------------------

    def _around_evaluate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            arguments = self.trainer.args
            batch = arguments.per_device_eval_batch_size
            if self._batch_that_fits is not None:
                arguments.per_device_eval_batch_size = min(batch, self._batch_that_fits)
            has_failed = False
            try:
                while True:
                    try:
                        answer = original(*args, **kwargs)
                    except RETRIABLE as error:
                        if not is_out_of_memory(error):
                            raise
                        if arguments.per_device_eval_batch_size == 1:
                            self._tell("gave-up", PLAIN, f"out of memory in evaluation, with single rows: {error}")
                            raise
                        failure = error
                    else:
                        if has_failed:
                            self._learn_batch(arguments.per_device_eval_batch_size)
                        return answer
                    has_failed = True
                    self._halve(failure)
            finally:
                arguments.per_device_eval_batch_size = batch
                self._forget_loaders(batch)

        return evaluate

    def _halve(self, failure: Exception) -> None:
        """Have the evaluation begin again with half the batch, where a batch could not be cut."""
        let_go(failure)
        arguments = self.trainer.args
        arguments.per_device_eval_batch_size //= 2
        self._forget_loaders(None)
        for _, lists in metric_lists(self.trainer, "eval"):
            lists.clear()

    def _learn_batch(self, size: int) -> None:
        """Remember the batch that an evaluation got through with."""
        self._batch_that_fits = size
        text = f"the evaluation was begun again with a batch of {size}, so means of batch means may differ"
        self._tell("recovered", Tactic(most_rows=size), text)

    def _forget_loaders(self, batch: int | None) -> None:
        """Drop data loaders that were kept, with persistent workers, for another batch size."""
        loaders = getattr(self.trainer, "_eval_dataloaders", None)
        if loaders and (batch is None or any(loader.batch_sampler.batch_size != batch for loader in loaders.values())):
            loaders.clear()

    def _tell(self, kind: EventKind, tactic: Tactic, text: str) -> None:
        step = int(self.trainer.state.global_step)
        logger.warning("step %d: %s", step, text)
        self.on_event(MemoryEvent(kind, step, 0, "evaluation", str(tactic), 0.0, text))


def _copy(inputs: Any) -> Any:
    return dict(inputs) if type(inputs) is dict else inputs


def _joined(values: list[Any], layout: Layout) -> Any:
    """Put the answers of the pieces together as the whole batch would have given them."""
    import torch

    first = values[0]
    if isinstance(first, tuple | list):
        return type(first)(_joined(list(column), layout) for column in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {key: _joined([value[key] for value in values], layout) for key in first}
    if not isinstance(first, torch.Tensor) or first.ndim == 0:
        return first
    if layout.is_paired and all(value.shape[0] % 2 == 0 for value in values):
        halves = [value.chunk(2) for value in values]
        return torch.cat([half[0] for half in halves] + [half[1] for half in halves])
    return torch.cat(values)

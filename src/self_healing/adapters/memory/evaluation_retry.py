"""Out of memory in evaluation: the batch is evaluated in pieces that give the same metrics, or the loop with half the batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..trainer.trl_counters import Counters, metric_lists
from ..trainer.wrapping import Wrapping
from .batch_cuts import Layout, Weight, shape_of
from .known_losses import LossRule, loss_rule
from .loss_in_pieces import CannotSplitError
from .loss_weights import WeightFinder, label_counts, piece_weight
from .memory_errors import RETRIABLE, is_out_of_memory, let_go
from .memory_events import MemoryEvent
from .memory_plan import PLAIN, Choice, Ladder, MemoryPlan, Shape, Tactic
from .piece_metrics import PieceMetrics
from .whole_batch_baseline import WholeBatchBaseline

logger = logging.getLogger("self_healing.memory")


class EvaluationRetry:
    """Gets the evaluations of one trainer through when memory runs out."""

    def __init__(self, trainer: Any, *, on_event: Callable[[MemoryEvent], None] = lambda _event: None) -> None:
        self.trainer = trainer
        self.on_event = on_event
        self.plan = MemoryPlan()
        self._finder = WeightFinder(trainer)
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

            shape = Shape(*shape_of(inputs))
            # Without gradients there is nothing to checkpoint, and an evaluation is too short to grow back in.
            ladder = Ladder(shape.rows, can_checkpoint=False, can_split=True)
            tactic = self.plan.choose(shape, 0, ladder).tactic
            before = Counters.of(self.trainer, "eval")
            failure: Exception | None = None
            while True:
                try:
                    if tactic.most_rows is None:
                        return predict(_copy(inputs), prediction_loss_only)
                    return self._in_pieces(predict, inputs, tactic.most_rows, prediction_loss_only)
                except CannotSplitError as error:
                    if failure is not None:
                        raise failure from error
                    tactic = PLAIN
                    continue
                except RETRIABLE as error:
                    if not is_out_of_memory(error):
                        raise
                    failure = error
                before.restore(self.trainer)
                tactic = self._smaller(failure, inputs, shape, tactic)

        return prediction_step

    def _smaller(self, failure: Exception, inputs: Any, shape: Shape, tactic: Tactic) -> Tactic:
        """Return the next tactic, and remember it; raise the failure again where there is none."""
        failure.add_note(f"self-healing: first raised at\n{let_go(failure)}")
        rule = loss_rule(self.trainer, inputs, num_items=None)
        ladder = Ladder(0 if isinstance(rule, str) else rule.layout.rows, can_checkpoint=False, can_split=True)
        stronger = ladder.stronger(tactic) if ladder.rows else None
        if stronger is None:
            raise failure
        self.plan.needed(shape, 0, stronger, Choice(PLAIN), ladder)
        self._tell(stronger, f"out of memory in evaluation, with a batch of {shape}: it is evaluated in {stronger}")
        return stronger

    def _in_pieces(self, predict: Callable[[Any, bool], Any], inputs: Any, most_rows: int, loss_only: bool) -> Any:
        rule = loss_rule(self.trainer, inputs, num_items=None)
        if isinstance(rule, str):
            raise CannotSplitError(rule)
        layout = rule.layout
        found = self._weigh(lambda part: predict(part, True)[0], inputs, rule)
        if isinstance(found, str):
            raise CannotSplitError(found)
        weight, counts = found
        metrics = PieceMetrics(self.trainer, rule.family, "eval")
        baseline = WholeBatchBaseline(layout, inputs, most_rows)
        loss: Any = None
        answers = []
        for start in range(0, layout.rows, most_rows):
            end = min(start + most_rows, layout.rows)
            part = layout.part(inputs, start, end)
            with self._whole_baseline(baseline, rule):
                piece_loss, *answer = predict(dict(part), loss_only)
            metrics.piece_done(part, end - start)
            answers.append(answer)
            if piece_loss is not None:
                weighted = piece_loss * piece_weight(weight, counts, start, end, layout.rows)
                loss = weighted if loss is None else loss + weighted
        metrics.fold()
        return (loss, *(_joined(list(column), layout) for column in zip(*answers, strict=True)))

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

    def _weigh(
        self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any], rule: LossRule
    ) -> tuple[Weight, list[int] | None] | str:
        """Find what the loss of a piece counts for; each piece is normalised by itself, so none is a plain sum."""
        if rule.weight is None:
            return self._finder.find(loss_of, inputs, rule.layout)
        counts = label_counts(self.trainer, inputs, rule.layout) if rule.weight is Weight.LABELS else None
        if counts is not None and min(counts) == 0:
            return "a row without any label that counts has no loss of its own"
        return rule.weight, counts

    # -- the whole loop ------------------------------------------------------------------------------

    def _around_evaluate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            arguments = self.trainer.args
            batch = arguments.per_device_eval_batch_size
            if self._batch_that_fits is not None:
                arguments.per_device_eval_batch_size = min(batch, self._batch_that_fits)
            try:
                while True:
                    try:
                        return original(*args, **kwargs)
                    except RETRIABLE as error:
                        if not is_out_of_memory(error) or arguments.per_device_eval_batch_size == 1:
                            raise
                        failure = error
                    self._halve(failure)
            finally:
                arguments.per_device_eval_batch_size = batch
                self._forget_loaders(batch)

        return evaluate

    def _halve(self, failure: Exception) -> None:
        """Begin the evaluation again with half the batch, where a batch could not be cut."""
        let_go(failure)
        arguments = self.trainer.args
        arguments.per_device_eval_batch_size //= 2
        self._forget_loaders(None)
        for _, lists in metric_lists(self.trainer, "eval"):
            lists.clear()
        self._batch_that_fits = size = arguments.per_device_eval_batch_size
        text = (
            f"out of memory in evaluation: it begins again with a batch of {size}, so means of batch means may differ"
        )
        self._tell(Tactic(most_rows=size), text)

    def _forget_loaders(self, batch: int | None) -> None:
        """Drop data loaders that were kept, with persistent workers, for another batch size."""
        loaders = getattr(self.trainer, "_eval_dataloaders", None)
        if loaders and (batch is None or any(loader.batch_sampler.batch_size != batch for loader in loaders.values())):
            loaders.clear()

    def _tell(self, tactic: Tactic, text: str) -> None:
        step = int(self.trainer.state.global_step)
        logger.warning("step %d: %s", step, text)
        self.on_event(MemoryEvent("recovered", step, 0, "evaluation", str(tactic), 0.0, text))


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

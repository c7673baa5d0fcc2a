"""What a piece of a batch counts for: counted where the rule is known, found out on two rows where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .batch_cuts import Layout, Weight


def label_counts(trainer: Any, inputs: Mapping[str, Any], layout: Layout) -> list[int] | None:
    """Return how many labels of each row count; None where the batch has no labels. Waits for the device."""
    if "completion_mask" in inputs and "labels" not in inputs:
        mask = inputs["completion_mask"]
    elif "shift_labels" in inputs:
        mask = inputs["shift_labels"].ne(-100)
    elif "labels" in inputs and getattr(inputs["labels"], "ndim", 0) > 0:
        labels = inputs["labels"]
        shifts = labels.ndim > 1 and _shifts_labels(trainer)
        mask = (labels[..., 1:] if shifts else labels).ne(-100)
    else:
        return None
    counts = mask.reshape(mask.shape[0], -1).sum(1).tolist()
    return [int(count) for count in counts[: layout.rows]]


def piece_weight(weight: Weight, counts: list[int] | None, start: int, end: int, rows: int) -> float:
    """Return the factor for the loss of some rows."""
    if weight is Weight.ONE:
        return 1.0
    if weight is Weight.ROWS or counts is None:
        return (end - start) / rows
    return sum(counts[start:end]) / sum(counts)


class WeightFinder:
    """Finds out how a loss adds up its rows, by computing it for two rows apart and together.

    The model is in evaluation mode for that, so that dropout does not disturb the comparison, and no gradient is made.
    What was found is remembered.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rows_run = 0
        """Rows that had to be run forward for this so far."""
        self._found: Weight | None = None
        self._is_mean = False
        """It is a mean; over rows or over labels could not be told yet, since all rows had as many labels."""

    def find(
        self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any], layout: Layout
    ) -> tuple[Weight, list[int]] | str:
        """Return the weight and the labels that count in each row, or a sentence that says that no rule fits."""
        given = label_counts(self.trainer, inputs, layout)
        counts = [1] * layout.rows if given is None else given
        if self._found is None and not (self._is_mean and len(set(counts)) == 1):
            refusal = self._try(loss_of, inputs, layout, counts)
            if refusal is not None:
                return refusal
        weight = self._found or Weight.LABELS
        if weight is Weight.LABELS and min(counts) == 0:
            return "a row without any label that counts has no loss of its own"
        return weight, counts

    def _try(
        self, loss_of: Callable[[dict[str, Any]], Any], inputs: Mapping[str, Any], layout: Layout, counts: list[int]
    ) -> str | None:
        order = sorted((row for row in range(layout.rows) if counts[row]), key=lambda row: counts[row])
        if len(order) < 2:
            return "fewer than two rows have a label that counts"
        first, second = order[0], order[-1]  # rows that differ most in labels tell the rules apart best
        parts = [layout.part(inputs, row, row + 1) for row in (first, second)]
        both = {name: _join(parts[0][name], parts[1][name], inputs[name]) for name in inputs}
        with _evaluating(self.trainer.model), _without_preparation():
            one, two, together = (float(loss_of(part)) for part in (*parts, both))
        self.rows_run += 4
        share = counts[first] / (counts[first] + counts[second])
        expected = {Weight.ONE: one + two, Weight.LABELS: share * one + (1.0 - share) * two}
        if share != 0.5:
            expected[Weight.ROWS] = 0.5 * (one + two)
        margin = _tolerance(self.trainer) * max(abs(one), abs(two))
        fitting = [weight for weight, value in expected.items() if abs(value - together) <= margin]
        if len(fitting) != 1:
            several = " and ".join(fitting) if fitting else "no rule"
            return f"{several} would explain the loss of two rows together ({together:.6g}; apart {one:.6g}, {two:.6g})"
        self._is_mean = fitting[0] is not Weight.ONE
        self._found = None if self._is_mean and share == 0.5 else fitting[0]
        return None


def _tolerance(trainer: Any) -> float:
    """Return the relative error of a loss in the precision it is computed in."""
    parameter = next(trainer.model.parameters())
    is_exact = parameter.element_size() >= 4 and trainer.accelerator.mixed_precision == "no"
    return 1e-4 if is_exact else 2e-2


def _join(first: Any, second: Any, whole: Any) -> Any:
    import torch

    if isinstance(first, torch.Tensor) and first.ndim > 0 and first is not whole:
        return torch.cat((first, second))
    return first + second if isinstance(first, list | tuple) and first is not whole else first


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Switch to evaluation mode without gradients, and put every module's mode and the random state back."""
    import torch

    from ...tensors.random_state import RandomState

    training = [module for module in model.modules() if module.training]
    state = RandomState.capture()
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
        state.restore()


@contextmanager
def _without_preparation() -> Iterator[None]:
    """Leave cuDNN's attention out: it takes 0.6 s to get ready for a size that is not run again."""
    import torch

    is_on = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled=is_on)


def _shifts_labels(trainer: Any) -> bool:
    """Say whether the loss predicts the next label, so that the first of each row does not count."""
    known = getattr(trainer, "_loss_shifts_labels", None)
    if isinstance(known, bool):
        return known
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return type(trainer.accelerator.unwrap_model(trainer.model)).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

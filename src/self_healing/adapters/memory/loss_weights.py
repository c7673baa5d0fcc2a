"""What a piece of a batch counts for: counted where the rule is known, found out on two rows where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..step.trl_counters import Counters
from .adding_up import AddingUp, are_alike, best_pair, thinned, ways_to_add_up
from .batch_cuts import Layout, Weight
from .memory_errors import RETRIABLE, is_out_of_memory
from .row_kinds import RowKinds

NO_LABEL = "a row without any label that counts has no loss of its own"
MOST_WATCHED = 6
"""Parameters, the last of the model, whose gradients tell how a loss adds up."""
MOST_ELEMENTS = 2**22
"""Larger ones, such as the head of a large vocabulary, are not watched."""

MOST_PAIRS = 4
"""Pairs of rows that are tried until one way to add up is left."""
LOOKED_AT_AGAIN = 32
"""Batches after which a loss of a user's own is tried once more: part of it may begin late."""

LossOf = Callable[[dict[str, Any]], Any]


def label_counts(inputs: Mapping[str, Any], layout: Layout) -> list[int] | None:
    """Return how many labels of each row count where the next one is predicted; None where the batch has no labels.

    Only for losses that are known to count so. Waits for the device.
    """
    if "completion_mask" in inputs and "labels" not in inputs:
        mask = inputs["completion_mask"]
    elif "shift_labels" in inputs:
        mask = inputs["shift_labels"].ne(-100)
    elif "labels" in inputs and getattr(inputs["labels"], "ndim", 0) > 1:
        mask = inputs["labels"][..., 1:].ne(-100)
    else:
        return None
    counts = mask.reshape(mask.shape[0], -1).sum(1).tolist()
    return [int(count) for count in counts[: layout.rows]]


def is_known_to_shift(trainer: Any) -> bool:
    """Say whether the model is one of transformers' own that predict the next label, and no class derived from one.

    What another class does with its labels cannot be read off its name, and transformers' own flag is False for some that
    shift them.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(model, "get_base_model"):  # adapters of peft hand everything on
        model = model.get_base_model()
    cls = type(model)
    if cls.__module__.partition(".")[0] != "transformers":
        return False
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return cls.__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def piece_weight(weight: Weight, counts: list[int] | None, start: int, end: int, rows: int) -> float:
    """Return the factor for the loss of some rows."""
    if weight is Weight.ONE:
        return 1.0
    if weight is Weight.ROWS or counts is None:
        return (end - start) / rows
    return sum(counts[start:end]) / sum(counts)


class _Seen(NamedTuple):
    """What was computed for some rows."""

    loss: float
    gradient: Any
    """Of a few parameters, in one vector; None where only the loss is to be had."""


class WeightFinder:
    """Finds out how a loss adds up its rows, by computing it for two rows apart and together.

    It is their gradients that are compared: two rows may have the same loss by chance, but never the same gradient, so
    that ways to add up which would give another gradient are told apart. The model is in evaluation mode for that, so
    that dropout does not disturb the comparison. What was ruled out is remembered; where what is left would not give every
    piece of a batch the same weight, its rows are tried too.

    Code of a user's own may do anything: there the model stays in training mode where nothing is drawn at random, because
    what couples rows may be there in training alone, and rows with values never seen before are tried, four together.
    """

    def __init__(self, trainer: Any, *, has_gradients: bool = True) -> None:
        self.trainer = trainer
        self.rows_run = 0
        """Rows that had to be run forward for this so far."""
        self.refused: str | None = None
        """Why the loss does not add up, where that was seen."""
        self._has_gradients = has_gradients
        self._is_own = is_of_own_making(trainer)
        self._kinds = RowKinds()
        self._uses = 0
        self._possible: set[str] = set()
        """Names of the ways to add up that were not ruled out; empty before the first trial."""

    def find(self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout) -> tuple[Weight, list[int]] | str:
        """Return the weight and what each row counts for, or a sentence that says why that is not certain."""
        found = self.possible(loss_of, inputs, layout)
        if isinstance(found, str):
            return found
        if not are_alike(found):
            names = " and ".join(way.name for way in found)
            return f"{names} would each explain the loss of two rows together, and would cut this batch differently"
        return found[0].weight, list(found[0].amounts)

    def possible(self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout) -> list[AddingUp] | str:
        """Return the ways to add up that cannot be told apart, or a sentence that says that there is none."""
        ways = ways_to_add_up(self.trainer, inputs, layout)
        left = [way for way in ways if way.name in self._possible]
        self._uses += 1
        is_due = self._is_own and (self._uses % LOOKED_AT_AGAIN == 0 or bool(self._kinds.new_in(inputs, layout)))
        if not left or not are_alike(left) or is_due:
            tried = self._try(loss_of, inputs, layout, left or ways)
            if not isinstance(tried, str) and self._is_own:
                tried = self._of_more_rows(loss_of, inputs, layout, tried)
            if isinstance(tried, str):
                return tried
            left = tried
            self._possible = {way.name for way in left}
        return NO_LABEL if any(min(way.amounts) == 0 for way in left) else left

    def _try(
        self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout, ways: list[AddingUp]
    ) -> list[AddingUp] | str:
        for _ in range(MOST_PAIRS):  # another pair where several of them give the two rows the same share
            tried = len(ways)
            fitting = self._fitting(loss_of, inputs, layout, ways, best_pair(ways))
            if isinstance(fitting, str) or are_alike(fitting):
                return fitting
            ways = fitting
            if len(ways) == tried:
                break
        fewer = thinned(inputs, layout)
        if fewer is None:
            return ways
        names = {way.name for way in ways}
        of_fewer = [way for way in ways_to_add_up(self.trainer, fewer[0], layout) if way.name in names]
        told = self._fitting(loss_of, fewer[0], layout, of_fewer, fewer[1])
        if isinstance(told, str):
            return told
        names = {way.name for way in told}
        return [way for way in ways if way.name in names]

    def _fitting(
        self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout, ways: list[AddingUp], pair: tuple[int, int]
    ) -> list[AddingUp] | str:
        """Return the ways that explain two rows together by each of them alone, or say that none does."""
        return self._explaining(loss_of, inputs, layout, ways, list(pair))

    def _of_more_rows(
        self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout, ways: list[AddingUp]
    ) -> list[AddingUp] | str:
        """Return the ways that also hold for rows of kinds that were not tried yet, several together."""
        rows: list[int] | None = self._kinds.group(inputs, layout, at_least_one=True)
        while rows is not None:
            try:
                found = self._explaining(loss_of, inputs, layout, ways, rows)
            except RETRIABLE as error:
                if not is_out_of_memory(error):
                    raise
                rows = rows[:2]  # so many do not fit; two of them do
                found = self._explaining(loss_of, inputs, layout, ways, rows)
            if isinstance(found, str):
                return found
            ways = found
            self._kinds.tried(inputs, layout, rows)
            rows = self._kinds.group(inputs, layout)
        return ways

    def _explaining(
        self, loss_of: LossOf, inputs: Mapping[str, Any], layout: Layout, ways: list[AddingUp], rows: list[int]
    ) -> list[AddingUp] | str:
        """Return the ways that explain some rows together by each of them alone, or say that none does."""
        parts = [layout.part(inputs, row, row + 1) for row in rows]
        both = joined_rows(parts, inputs)
        counters = [Counters.of(self.trainer, mode) for mode in ("train", "eval")]
        try:
            with _without_preparation():
                fitting, together, apart = self._compare(loss_of, parts, both, ways, rows)
        finally:
            for counter in counters:
                counter.restore(self.trainer)
        if fitting:
            return fitting
        number = "two" if len(rows) == 2 else str(len(rows))
        losses = f"({together.loss:.6g}; apart {', '.join(f'{one.loss:.6g}' for one in apart)})"
        self.refused = f"no rule would explain the loss of {number} rows together {losses}"
        return self.refused

    def _compare(
        self,
        loss_of: LossOf,
        parts: list[dict[str, Any]],
        both: dict[str, Any],
        ways: list[AddingUp],
        rows: list[int],
    ) -> tuple[list[AddingUp], _Seen, list[_Seen]]:
        """Compute some rows alone and together; return which ways explain that, and what was computed."""
        margin, model = tolerance(self.trainer), self.trainer.model

        def fitting(seen: list[_Seen]) -> tuple[list[AddingUp], _Seen, list[_Seen]]:
            *apart, together = seen
            return [way for way in ways if _explains(way.shares(rows), apart, together, margin)], together, apart

        if self._is_own and self._has_gradients and model.training:
            try:
                with left_as_it_was(model):
                    found = fitting(self._look(loss_of, (*parts, both)))
                    self.rows_run += 2 * len(rows)
                    if found[0]:
                        return found
                    again = self._look(loss_of, (both, both))  # with other random numbers each
                    self.rows_run += 2 * len(rows)
                if again[0].loss == again[1].loss == found[1].loss:
                    return found
            except RETRIABLE as error:
                if not is_out_of_memory(error):
                    raise
        with left_as_it_was(model):
            model.eval()
            self.rows_run += 2 * len(rows)
            return fitting(self._look(loss_of, (*parts, both)))

    def _look(self, loss_of: LossOf, parts: tuple[dict[str, Any], ...]) -> list[_Seen]:
        import torch

        if not self._has_gradients:
            with torch.no_grad():
                return [_Seen(float(loss_of(part).mean()), None) for part in parts]
        with _watching(self.trainer.model) as watched, torch.enable_grad():
            seen = [_gradient(loss_of(part), watched) for part in parts]
        used = [
            all(gradients) for gradients in zip(*([g is not None for g in found] for _, found in seen), strict=True)
        ]
        return [
            _Seen(loss, _flat([gradient for gradient, is_used in zip(found, used, strict=True) if is_used]))
            for loss, found in seen
        ]


def tolerance(trainer: Any) -> float:
    """Return the relative error of a gradient in the precision it is computed in."""
    import torch

    parameter = next(trainer.model.parameters())
    is_exact = parameter.element_size() >= 4 and trainer.accelerator.mixed_precision == "no"
    is_exact = is_exact and not (parameter.is_cuda and torch.backends.cuda.matmul.allow_tf32)
    return 1e-4 if is_exact else 2e-2


def is_of_own_making(trainer: Any) -> bool:
    """Say whether a loss is computed by code of the user's: the trainer's, a function, or the model's."""
    if getattr(trainer, "compute_loss_func", None) is not None:
        return True
    definer = next((cls for cls in type(trainer).__mro__ if "compute_loss" in vars(cls)), type(trainer))
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    put_in = (vars(trainer).get("compute_loss", definer), vars(model).get("forward", type(model)))
    makers = [str(getattr(maker, "__module__", "")).partition(".")[0] for maker in (definer, type(model), *put_in)]
    return any(maker not in ("transformers", "trl", __name__.partition(".")[0]) for maker in makers)


def _explains(shares: tuple[float, ...], apart: list[_Seen], together: _Seen, margin: float) -> bool:
    error = abs(sum(share * one.loss for share, one in zip(shares, apart, strict=True)) - together.loss)
    if not error <= margin * max(abs(one.loss) for one in apart):
        return False
    if together.gradient is None:
        return True
    total = sum(share * one.gradient for share, one in zip(shares, apart, strict=True))
    error = float((total - together.gradient).norm())
    return error <= margin * max(float(one.gradient.norm()) for one in apart)


def explains_losses(trainer: Any, shares: tuple[float, ...], seen: list[_Seen]) -> bool:
    """Say whether the losses of some rows, each alone and at last all together, are explained by what each counts for."""
    *apart, together = seen
    return _explains(shares, apart, together, tolerance(trainer))


@contextmanager
def _watching(model: Any) -> Iterator[list[Any]]:
    """Have gradients made for a few of the last parameters only, so that the passes keep hardly anything."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    small = [parameter for parameter in reversed(trained) if parameter.numel() <= MOST_ELEMENTS]
    watched = (small or sorted(trained, key=lambda parameter: int(parameter.numel())))[:MOST_WATCHED]
    names = {id(parameter) for parameter in watched}
    others = [parameter for parameter in trained if id(parameter) not in names]
    for parameter in others:
        parameter.requires_grad_(requires_grad=False)
    try:
        yield watched
    finally:
        for parameter in others:
            parameter.requires_grad_(requires_grad=True)


def _gradient(loss: Any, watched: list[Any]) -> tuple[float, list[Any]]:
    import torch

    if not loss.requires_grad:
        return float(loss), [None] * len(watched)  # nothing here is trained by this loss
    found = torch.autograd.grad(loss, watched, allow_unused=True)
    return float(loss.detach()), [None if each is None else each.detach().to_dense() for each in found]


def _flat(gradients: list[Any]) -> Any:
    """Return gradients as one vector; None where there are none."""
    import torch

    if not gradients:
        return None
    return torch.cat([gradient.flatten().cpu().double() for gradient in gradients])


def joined_rows(parts: list[dict[str, Any]], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return several parts of a batch as one."""
    return {name: _joined([part[name] for part in parts], inputs[name]) for name in inputs}


def _joined(values: list[Any], whole: Any) -> Any:
    import torch

    first = values[0]
    if isinstance(first, torch.Tensor) and first.ndim > 0 and first is not whole:
        return torch.cat(values)
    if isinstance(first, list | tuple) and first is not whole:
        return type(first)(item for value in values for item in value)
    return first


@contextmanager
def left_as_it_was(model: Any) -> Iterator[None]:
    """Put every module's mode, the random state, and buffers that a pass in training changes back."""
    import torch

    from ...tensors.random_state import RandomState

    training = [module for module in model.modules() if module.training]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    state = RandomState.capture()
    try:
        yield
    finally:
        for module in training:
            module.training = True
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
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

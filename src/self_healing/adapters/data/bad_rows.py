"""A forward pass that raises because of rows of its batch: another row takes the place of each.

An `IndexError` in an embedding may be one record with a token that the model does not know, or a model that was not
resized. Rows that fail alone, beside as many that do not, are to blame themselves. Where most of them fail, or there is
but one, the model could be as well: as many rows of a step that was applied are tried, and only where those get through
are the others to blame. Else, or where none fails by itself, nothing is replaced and the exception goes its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..family import family_of, forget_offloaded, names_in_all
from ..memory.adding_up import IGNORED
from ..memory.batch_cuts import Layout, layout_of
from ..memory.memory_errors import phase_of
from ..step.trl_counters import Counters
from .data_errors import may_be_the_record
from .other_data import device_works, is_like, raised_by

if TYPE_CHECKING:
    from ..step.make_up import MakeUp
    from ..step.window import MicroBatch

MOST_TRIALS = 64
"""Passes over parts of a batch that the search for bad rows may take."""

Tell = Callable[[list[int], str, list[dict[str, Any]], Exception], bool]
"""Told of bad rows, what is used instead, what they hold and why; says whether they may be replaced."""


class BadRows:
    """Runs the micro-batches of one trainer and gets them through when the model raises on some of their rows."""

    def __init__(self, trainer: Any, tell: Tell, making_up: MakeUp) -> None:
        self.trainer = trainer
        self._tell = tell
        self._making_up = making_up  # knows the newest step that was applied
        self.alone: Callable[[], None] = _nobody_else
        """Is called before passes that no other process makes."""

    def run(self, attempt: Callable[[], Any], micro_batch: MicroBatch) -> Any:
        """Run one micro-batch, once more without the rows that the model raises on."""
        counters = Counters.of(self.trainer)
        try:
            return attempt()
        except Exception as error:
            can_be_tried = not micro_batch.is_changed() and self._may_be_rows(error)
            instead = self._without_bad_rows(micro_batch, error) if can_be_tried else None
            if instead is None:
                raise
        counters.restore(self.trainer)
        self._put_back(micro_batch)
        micro_batch.inputs, micro_batch.prepared, micro_batch.counted = instead, None, {}
        return attempt()

    def _may_be_rows(self, error: Exception) -> bool:
        """Say whether single rows can be to blame, and their pass be begun anew."""
        trainer = self.trainer
        if any(hasattr(trainer, name) for name in names_in_all("generated")):  # the rows were made from others
            return False
        return phase_of(error) == "forward" and may_be_the_record(error) and device_works(trainer.args.device)

    def _without_bad_rows(self, micro_batch: MicroBatch, error: Exception) -> dict[str, Any] | None:
        inputs = micro_batch.again() or micro_batch.inputs
        layout = self._layout_of(inputs)
        if isinstance(layout, str):
            return None
        known_good = self._known_good(layout.rows)
        if layout.rows == 1 and known_good is None:  # nothing that it could be compared with
            return None
        self.alone()
        with self._as_though_not_tried(micro_batch):
            bad = self._bad_rows(inputs, layout, error)
            if 2 * len(bad) > layout.rows and (known_good is None or raised_by(self.trainer, known_good) is not None):
                return None
        if not bad:
            return None
        good = [row for row in range(layout.rows) if row not in bad]
        order = list(range(layout.rows))
        for row in bad if good else ():
            order[row] = min(good, key=lambda other: (other - row) % layout.rows)  # called at once
        instead = "; ".join(f"row {order[row]} takes the place of row {row}" for row in bad)
        if not good:
            instead = "rows of the newest step that was applied take the place of all"
        holding = [] if layout.is_paired else [_content(inputs, row, layout.rows) for row in bad]
        if not self._tell(bad, instead, holding, error):
            return None
        replaced = known_good if known_good is not None and not good else _in_order(inputs, order, layout)
        _count_as_many_labels(replaced, inputs, bad)
        return replaced

    def _layout_of(self, inputs: Any) -> Layout | str:
        family = family_of(self.trainer)
        is_paired = isinstance(inputs, Mapping) and family.is_paired(inputs)
        return layout_of(inputs, is_paired=is_paired, whole=family.whole_fields, fewest=1)

    def _known_good(self, rows: int) -> dict[str, Any] | None:
        """Return so many rows of the newest step that was applied: as many as failed, for their number may be the fault."""
        import torch
        from torch.utils._pytree import tree_map_only

        spare = self._making_up.spare
        if spare is None or not spare.micro_batches:  # a loop's own step has none that we could run
            return None
        micro_batch = spare.micro_batches[0]
        found = micro_batch.again() or micro_batch.inputs
        if not isinstance(found, Mapping):
            return None
        device = self.trainer.args.device
        inputs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), dict(found))
        layout = self._layout_of(inputs)
        if isinstance(layout, str):
            return None
        return _in_order(inputs, [row % layout.rows for row in range(rows)], layout)

    def _bad_rows(self, inputs: Mapping[str, Any], layout: Layout, error: Exception) -> list[int]:
        """Return the rows that raise the same by themselves; none where the batch does not raise a second time."""
        left = MOST_TRIALS

        def bad_of(start: int, end: int) -> list[int]:
            nonlocal left
            left -= 1
            raised = raised_by(self.trainer, layout.part(inputs, start, end)) if left >= 0 else None
            if raised is None or not is_like(raised, error):
                return []
            middle = (start + end) // 2
            return [start] if end - start == 1 else bad_of(start, middle) + bad_of(middle, end)

        found = bad_of(0, layout.rows)
        return found if left >= 0 else []

    @contextmanager
    def _as_though_not_tried(self, micro_batch: MicroBatch) -> Iterator[None]:
        """Put everything back that passes for a trial change."""
        from ...tensors.random_state import RandomState

        now, counters = RandomState.capture(), Counters.of(self.trainer)
        try:
            yield
        finally:
            counters.restore(self.trainer)
            self._put_back(micro_batch)
            now.restore()

    def _put_back(self, micro_batch: MicroBatch) -> None:
        """Make it as though the pass had not been begun."""
        if micro_batch.random_state is not None:
            micro_batch.random_state.restore()
        if micro_batch.put_back is not None:
            micro_batch.put_back()
        forget_offloaded(self.trainer)


def _nobody_else() -> None:
    """Stand for a run of one process."""


def _in_order(inputs: Mapping[str, Any], order: list[int], layout: Layout) -> dict[str, Any]:
    """Return inputs with these rows, in this order."""
    return {name: _reordered(value, order, layout, name) for name, value in inputs.items()}


def _reordered(value: Any, order: list[int], layout: Layout, name: str) -> Any:
    """Return one input with these rows."""
    size = len(value) if isinstance(value, list | tuple) else int(value.shape[0]) if getattr(value, "ndim", 0) else None
    if size is None or name in layout.whole:
        return value
    if layout.is_paired and size == 2 * layout.rows:
        order = [*order, *(layout.rows + row for row in order)]
    return value[order] if hasattr(value, "ndim") else type(value)(value[row] for row in order)


def _count_as_many_labels(instead: dict[str, Any], inputs: Mapping[str, Any], rows: list[int]) -> None:
    """Have rows count no more labels than those they replace: the loss is divided by a number that was counted before."""
    before: Any = inputs.get("labels")
    if getattr(before, "ndim", 0) != 2 or before.is_floating_point() or "labels" not in instead:
        return
    for row in rows:
        most = int(before[row].ne(IGNORED).sum())
        surplus = instead["labels"][row].ne(IGNORED).nonzero().flatten()[most:]
        instead["labels"][row, surplus] = IGNORED


def _content(inputs: Mapping[str, Any], row: int, rows: int) -> dict[str, Any]:
    """Return what a row holds, as plain numbers."""
    return {
        name: value[row].detach().cpu().tolist()
        for name, value in inputs.items()
        if getattr(value, "ndim", 0) > 0 and value.shape[0] == rows
    }

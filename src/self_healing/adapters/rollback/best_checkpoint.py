"""The best checkpoint of a run that returns: the trainer deletes checkpoints by a name that a return may bring back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...snapshots.verdicts import SavedState
from ..wrapping import Wrapping
from .memory_snapshots import MemorySnapshots


@contextmanager
def keeping_all_checkpoints(trainer: Any, *, where: bool = True) -> Iterator[None]:
    """Have the trainer delete no checkpoint to make room for another inside the block."""
    keeps_all = Wrapping()
    if where and hasattr(trainer.args, "save_total_limit"):
        keeps_all.replace(trainer.args, "save_total_limit", None)
    try:
        yield
    finally:
        keeps_all.restore()


def name_a_best_that_is_there(trainer: Any, kept: Iterable[SavedState]) -> str | None:
    """Correct the best checkpoint where a return has brought back the name of one that was deleted since; say so.

    To keep every checkpoint that some state knows as the best would take several times the room that the user has given
    with `save_total_limit`. The best of those that are left, by what was measured, takes its place; where none is left,
    the next evaluation begins anew.
    """
    state = trainer.state
    gone = getattr(state, "best_model_checkpoint", None)
    if gone is None or Path(gone).is_dir():
        return None
    measured = _measured(trainer)
    left = [(measured[each.step], each) for each in kept if _may_be_best(each, measured)]
    sign = -1.0 if trainer.args.greater_is_better else 1.0
    metric, best = min(left, key=lambda each: sign * each[0], default=(None, None))
    state.best_metric = metric
    state.best_global_step = None if best is None else best.step
    state.best_model_checkpoint = None if best is None else best.key
    now = (
        "the next evaluation begins anew"
        if best is None
        else f"of those that are left {Path(best.key).name} is the best"
    )
    return (
        f"{Path(gone).name}, the best checkpoint at the step that was returned to, was deleted since, when a better one "
        f"had been written: {now}"
    )


def _may_be_best(state: SavedState, measured: dict[int, float]) -> bool:
    return state.step in measured and not state.verdict.is_sick and Path(state.key).is_dir()


def _measured(trainer: Any) -> dict[int, float]:
    """Return what was measured at each step of the run's past that checkpoints are compared by."""
    name = str(trainer.args.metric_for_best_model or "loss")
    name = name if name.startswith("eval_") else f"eval_{name}"
    found: dict[int, float] = {}
    for entry in trainer.state.log_history:
        value = entry.get(name)
        if isinstance(value, int | float) and isinstance(entry.get("step"), int):
            found[entry["step"]] = float(value)
    return found


def written_from_memory(trainer: Any, snapshots: MemorySnapshots, state: SavedState) -> str:
    """Write a state to disk as the trainer writes its checkpoints, and say so; training is not touched by it."""
    snapshot, name = snapshots.get(state.key), f"checkpoint-{state.step}"
    if snapshot is None or (Path(trainer.args.output_dir) / name).exists():
        return f"{name} is there already"
    # What is best by now must not make room for what is known to an earlier state.
    with snapshots.for_a_moment(snapshot), keeping_all_checkpoints(trainer):
        trainer._save_checkpoint(trainer.model, None)  # noqa: SLF001  # what the loop itself calls
    return f"{name} was written from memory"

"""`healing_state.json` in a checkpoint: what a trainer and its guard know and the trainer's own files do not hold.

TRL counts tokens and gathers metrics in memory, transformers the losses since the last log and the mean of the whole
training; the guard knows what gradients are normal, and by how much the learning rate was cut, and rules go by the past
of the run. A stock resume begins with none of it. Numbers are JSON, what is larger goes into `healing_state.safetensors` beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...snapshots.checkpoint_check import differs_beside
from ...snapshots.manifest import BESIDE
from ...snapshots.manifest import FILE_NAME as MANIFEST
from ..family import names_in_all
from .guard_state import GuardState
from .left_out import LeftOut
from .trainer_capture import counted_names, put_count_back

if TYPE_CHECKING:
    from ..step.step_guard import StepGuard

FILE_NAME = "healing_state.json"
TENSORS = "healing_state.safetensors"
OURS = BESIDE
VERSION = 1


class Beside(NamedTuple):
    """What lies beside a checkpoint for others than its trainer and the guard."""

    history: Mapping[str, Any] | None = None
    """The past of the rules."""
    left_out: LeftOut | None = None
    """The data that the run had left out by then."""


class CannotReadError(ValueError):
    """What lies beside a checkpoint is not understood."""


def write_beside(
    folder: Path,
    step: int,
    counts: Mapping[str, Any],
    guard: Mapping[str, Any] | None,
    history: Mapping[str, Any] | None = None,
    *,
    accumulation: int | None = None,
    left_out: LeftOut | None = None,
) -> None:
    """Write it into the folder of a checkpoint, which is made where it is not there yet.

    Before the trainer writes its own files: a process that is killed leaves a whole checkpoint with it, or no whole one.

    Raises:
        OSError: it cannot be written.

    """
    from ...tensors.written import Written

    written = Written()
    content = {
        "v": VERSION,
        "step": step,
        "accumulation": accumulation,
        "left_out": left_out and {"batch_size": left_out.batch_size, "batches": sorted(left_out.batches)},
        "counts": {name: written.plain(value) for name, value in counts.items()},
        "guard": written.plain(guard),
        "history": written.plain(history),
        "tensors": written.marks,
    }
    folder.mkdir(parents=True, exist_ok=True)
    written.save(folder / TENSORS)
    with (folder / FILE_NAME).open("w", encoding="ascii") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def counts_of(trainer: Any) -> dict[str, Any]:
    """Return what the trainer has counted up to now."""
    own = vars(trainer)
    return {name: own[name] for name in _counted() if name in own}


def remove_where_alone(folder: Path) -> None:
    """Take our files away again where the trainer has decided to write nothing."""
    ours = OURS | {MANIFEST}
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= ours:
        for name in ours:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def put_back(folder: Path, trainer: Any, guard: StepGuard, *, is_first: bool) -> Beside:
    """Put back what lies beside a checkpoint, once `train()` has loaded it; return what is for others.

    What the guard knows is only put back where the process begins, and the history only given out there: later more is
    known and decided.

    Raises:
        CannotReadError: it cannot be read or understood; nothing was put back.

    """
    if "current_flos" in vars(trainer):  # of steps that were undone: the checkpoint's own are in its state
        trainer.current_flos = 0
    found = _read(folder, trainer.args.device)
    if found is None:
        return Beside()
    for name, value in _in_micro_batches_of_now(found["counts"], found["accumulation"], trainer).items():
        if name in _counted() and name in vars(trainer):  # what this trainer does not count is another one's
            if value is None:
                setattr(trainer, name, None)
            else:
                put_count_back(trainer, name, value)
    kept = found["guard"]
    if kept is not None:
        guard.loss_sum.go_on_from(kept["loss_sum"])
        if is_first:
            GuardState.take_over(
                guard, {**kept, "borrowed": 0, "spare": None}
            )  # the loader begins with what was borrowed
    return Beside(found["history"] if is_first else None, found["left_out"])


def _in_micro_batches_of_now(counts: dict[str, Any], then: Any, trainer: Any) -> dict[str, Any]:
    """Return the counts for a trainer whose updates have another number of micro-batches than they had then.

    What was generated ahead lies there in micro-batches of the old size: it is generated anew.
    """
    now = int(trainer.args.gradient_accumulation_steps)
    if not isinstance(then, int) or then in (0, now):
        return counts
    converted = {name: counts[name] * now // then for name in names_in_all("micro_batch_counts") if name in counts}
    return {**counts, **converted, **dict.fromkeys(names_in_all("generated"))}


def _counted() -> tuple[str, ...]:
    """Name what is written: operations are added to the trainer's state by every save."""
    return tuple(name for name in counted_names() if name != "current_flos")


def _read(folder: Path, device: Any) -> dict[str, Any] | None:
    from ...tensors.written import reader

    damaged = differs_beside(folder)
    if damaged is not None:  # what can still be read may be wrong all the same
        raise CannotReadError(f"{FILE_NAME} cannot be used: {damaged}")
    try:
        said = json.loads((folder / FILE_NAME).read_text(encoding="ascii"))
        if not isinstance(said, dict) or said.get("v") != VERSION:
            raise CannotReadError(f"{FILE_NAME} is of a version that is not known")
        read = reader(said["tensors"], folder / TENSORS, device)
        counts: dict[str, Any] = {}
        for name, plain in said["counts"].items():
            if not _lacks_something(plain):
                counts[name] = read(plain)
        others = {name: said.get(name) for name in ("guard", "history")}
        return {
            "counts": counts,
            "accumulation": said.get("accumulation"),
            "left_out": _left_out(said.get("left_out")),
            **{name: None if _lacks_something(each) else read(each) for name, each in others.items()},
        }
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CannotReadError(f"{FILE_NAME} cannot be used: {type(error).__name__}: {error}") from error


def _left_out(plain: Any) -> LeftOut | None:
    if plain is None:  # nothing, or an older version has written it
        return None
    return LeftOut(int(plain["batch_size"]), frozenset((int(epoch), int(each)) for epoch, each in plain["batches"]))


def _lacks_something(plain: Any) -> bool:
    """Say whether something was left out: then all of it is, for a half of a count counts nothing."""
    if isinstance(plain, dict):
        return "$unknown" in plain or any(map(_lacks_something, plain.values()))
    return isinstance(plain, list) and any(map(_lacks_something, plain))

"""From where training goes on: the newest checkpoint that is complete, verified and not sick. Nothing is deleted."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..core.errors import ConfigError
from .checkpoint_check import Checked, check, refused_files
from .manifest import FILE_NAME, STATE, step_of

AUTO = "auto"
DIFFERS = ("were written", "is not the one written down")
"""How it ends what is said of a file that is not as its manifest has it."""


class PassedOver(NamedTuple):
    """A checkpoint that was not taken."""

    folder: Path
    why: str

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What to resume from; a path of None means from the start."""

    path: Path | None = None
    passed_over: tuple[PassedOver, ...] = ()
    """Newer ones that were not taken."""
    checked: Checked | None = None
    """What was found in the one that was taken."""
    is_undone: bool = False
    """Whether the run had gone on from before the one that was taken, and has left no other."""

    @property
    def step(self) -> int | None:
        """Return the step in the folder's name."""
        return step_of(self.path) if self.path is not None else None

    @property
    def is_as_wanted(self) -> bool:
        """Whether the newest one was taken, so that nobody has to be warned."""
        return self.path is not None and not self.passed_over

    def __str__(self) -> str:
        """Say it in a sentence."""
        said = f"{self.path.name} is resumed from" if self.path is not None else "no checkpoint is resumed from"
        remarks = () if self.checked is None else (*self.checked.remarks, *filter(None, [self.checked.undone]))
        if remarks:
            said += f" ({'; '.join(remarks)})"
        return f"{said}; passed over: {'; '.join(map(str, self.passed_over))}" if self.passed_over else said


def checkpoints_in(output_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the checkpoint folders, newest first.

    Raises:
        OSError: the directory is there and cannot be listed.

    """
    try:
        found = [(step, path) for path in Path(output_dir).iterdir() if (step := step_of(path)) is not None]
    except FileNotFoundError:
        return []
    return [path for _, path in sorted(found, key=lambda entry: -entry[0])]


def choose(
    output_dir: str | os.PathLike[str],
    before_step: int | None = None,
    *,
    thorough: bool = True,
    finite: bool = False,
    model_only: bool = False,
    never_finite: Collection[str] = (),
    since_s: float | None = None,
    why_not: Callable[[Path], str | None] | None = None,
) -> Chosen:
    """Return the newest checkpoint to resume from, and why newer ones were passed over.

    One that the run has gone on from before holds steps that do not count any more: it is taken where there is no other.

    Args:
        output_dir: Where the Trainer writes its checkpoints.
        before_step: Only checkpoints from before this step are taken: where trouble began.
        thorough: Compare checksums, see `check`; likewise the others.
        finite: Look at the weights' values too.
        model_only: The run saves the model only.
        never_finite: Tensors of the model that are not finite by design.
        since_s: When the run began: what is older belongs to another one.
        why_not: Says why a folder is not to be taken, whatever it holds; None where nothing speaks against it.

    """
    passed_over: list[PassedOver] = []
    undone: list[Checked] = []
    try:
        folders = checkpoints_in(output_dir)
    except OSError as error:
        # Whoever starts from scratch because of this must know it.
        return Chosen(passed_over=(PassedOver(Path(output_dir), f"it cannot be listed: {error.strerror}"),))
    for folder in folders:
        if before_step is not None and (step_of(folder) or 0) >= before_step:
            passed_over.append(PassedOver(folder, f"it is not from before step {before_step}"))
            continue
        if since_s is not None and written_s(folder) < since_s:
            passed_over.append(PassedOver(folder, "it is older than this run"))
            continue
        because = why_not(folder) if why_not is not None else None
        if because is not None:
            passed_over.append(PassedOver(folder, because))
            continue
        checked = check(folder, thorough=thorough, finite=finite, model_only=model_only, never_finite=never_finite)
        if checked.is_usable and not checked.undone:
            return Chosen(path=folder, passed_over=tuple(passed_over), checked=checked)
        if checked.is_usable:
            undone.append(checked)
        passed_over.append(PassedOver(folder, checked.undone if checked.is_usable else "; ".join(checked.why_not)))
    if undone:
        newest = undone[0]
        others = tuple(each for each in passed_over if each.folder != newest.path)
        return Chosen(path=newest.path, passed_over=others, checked=newest, is_undone=True)
    return Chosen(passed_over=tuple(passed_over))


def must_load(chosen: Chosen) -> Chosen:
    """Return what was chosen, unless torch refuses to load it: found out before anything is touched.

    Raises:
        ConfigError: it does; the text says which file, why and what to do.

    """
    refused = refused_files(chosen.path) if chosen.path is not None else []
    if refused:
        raise ConfigError(
            f"{chosen.path} cannot be resumed from: {'; '.join(refused)}. Name another checkpoint, or rename or remove "
            "this folder, and an older one is taken."
        )
    return chosen


def written_s(folder: Path) -> float:
    """Return when a checkpoint was written, by the file that a Trainer writes last."""
    try:
        return (folder / STATE).stat().st_mtime
    except OSError:  # it is looked at more closely elsewhere
        return math.inf


def resolve(
    wanted: str | os.PathLike[str] | bool | None,
    output_dir: str | os.PathLike[str],
    *,
    model_only: bool = False,
    never_finite: Collection[str] = (),
    key: str = "resume_from_checkpoint",
    writer: str = "",
) -> Chosen:
    """Say what a `resume_from_checkpoint` means: "auto" and True choose, a path must be usable, else from the start.

    Unlike with a stock Trainer, True is no error where there is no checkpoint, and a path without optimizer or
    scheduler is one. A path marked sick is taken, for it was asked for by name.

    Args:
        wanted: What was asked for.
        output_dir: Where checkpoints are looked for.
        model_only: The run saves the model only.
        never_finite: Tensors of the model that are not finite by design.
        key: What the user calls it.
        writer: Who alone writes such checkpoints, so that their files need not be known to the user.

    Raises:
        ConfigError: the path cannot be resumed from; the text says why and what to do.

    """
    if not isinstance(wanted, str | os.PathLike | bool | None) or wanted == "":
        raise ConfigError(f'{key}={wanted!r}: must be None, False, True, "{AUTO}" or the path of a checkpoint')
    if wanted is None or wanted is False:
        return Chosen()
    if wanted is True or wanted == AUTO:
        return choose(output_dir, finite=True, model_only=model_only, never_finite=never_finite)
    folder = Path(wanted)
    checked = check(folder, model_only=model_only)
    problems = checked.problems or tuple(refused_files(folder))
    if problems:
        is_another = bool(writer) and folder.is_dir() and not (folder / STATE).exists()
        why = f"it is no checkpoint of {writer}" if is_another else "; ".join(problems)
        is_changed = any(told.endswith(DIFFERS) for told in problems)
        raise ConfigError(
            f"{key}={str(wanted)!r} cannot be resumed from: {why}. "
            f'Name another checkpoint, or "{AUTO}" for the newest usable one in {output_dir}.'
            + (f" If you have changed its files yourself, remove {FILE_NAME} in it." if is_changed else "")
        )
    return Chosen(path=folder, checked=checked)

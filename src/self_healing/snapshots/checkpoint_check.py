"""Whether a checkpoint folder is complete, holds what was written to it, and is not sick.

A stock Trainer that finds no optimizer or no scheduler in a checkpoint silently begins with fresh ones; here that is a
problem like any other. With a manifest sizes and checksums decide; without one the folder is unverified, and the
files' own formats must do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from .checkpoint_structure import PLACE, RNG, Structure
from .file_checks import problem_of_pickle, why_no_file
from .file_marks import FolderChangingError, mark_of
from .manifest import BESIDE, Manifest, ManifestError, manifest_of_now, read_manifest, step_of
from .verdicts import NOT_JUDGED, StateVerdict

WRITTEN_OVER = "its manifest is of older files, which were written over by what writes none"
LOADED = frozenset({"optimizer.pt", "scheduler.pt", "scaler.pt", "also.pt"})
"""What a resume loads beside the weights and random numbers; the last is what a loop has named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What was found in one checkpoint folder."""

    path: Path
    step: int | None
    problems: tuple[str, ...] = ()
    """Why training must not be resumed from it, in sentences."""
    remarks: tuple[str, ...] = ()
    """What is worth saying and does not prevent it."""
    verified: bool = False
    """A manifest was there, lists every file that a resume needs, and what was looked at agrees with it."""
    verdict: StateVerdict = NOT_JUDGED
    undone: str = ""
    """Why the run has gone on from before it, in a sentence: it is whole, and others are to be had first."""

    @property
    def why_not(self) -> tuple[str, ...]:
        """Return everything that speaks against it, its verdict among it."""
        sick = (f"it is marked sick: {self.verdict.because or 'no reason is given'}",) if self.verdict.is_sick else ()
        return (*sick, *self.problems)

    @property
    def is_usable(self) -> bool:
        """Say whether training may be resumed from it."""
        return not self.why_not


def check(
    folder: Path,
    *,
    thorough: bool = True,
    finite: bool = False,
    model_only: bool = False,
    never_finite: Collection[str] = (),
) -> Checked:
    """Look at a checkpoint folder; whatever is wrong with it is in the answer, nothing is raised.

    Args:
        folder: The folder.
        thorough: Read every file and compare checksums; otherwise only sizes, headers and small files are looked at.
        finite: Read the weights and look for values that are not finite, unless somebody has looked at them before they were
            written and hashed; and where there are no checksums for files that torch refuses to load; needs torch.
        model_only: Optimizer, scheduler and random states are not asked for, as in a run with `save_only_model`.
        never_finite: Tensors that hold such values by design, as masks do.

    """
    step = step_of(folder)
    manifest, verified, is_beside_damaged = None, False, False
    agreeing: frozenset[str] = frozenset()
    problems: list[str] = []
    remarks: list[str] = []
    try:
        if not folder.is_dir():
            return Checked(path=folder, step=step, problems=("there is no such folder",))
        manifest = manifest_of_now(folder)
        if manifest is None and read_manifest(folder) is not None:
            remarks.append(WRITTEN_OVER)
    except (ManifestError, OSError) as error:
        problems.append(str(error))
    try:
        if manifest is not None:
            differing = _differences(folder, manifest, thorough=thorough)
            for name, told in differing:
                (remarks if name in BESIDE else problems).append(told)
            agreeing = frozenset(manifest.files) - {name for name, _ in differing}
            is_beside_damaged = any(name in BESIDE for name, _ in differing)
            if is_beside_damaged:
                remarks.append("counts and the history of the rules begin anew, as after a stock resume")
        is_known = not problems
        looked = Structure(folder, agreeing, thorough=thorough)
        problems += looked.state_problems(step)
        problems += looked.weights_problems()
        problems += looked.optimizer_problems(model_only=model_only)
        problems += looked.place_problems()
        unlisted = sorted(looked.needed - agreeing)
        if unlisted and is_known:
            remarks.append(_without_checksums(unlisted, is_all=not agreeing))
        remarks += looked.remarks(model_only=model_only)
        if finite and not problems:
            was_looked_at = thorough and manifest is not None and manifest.verdict.survives_a_crash
            problems += looked.values_that_are_not_finite(agreeing if was_looked_at else frozenset(), never_finite)
            # What was hashed is as it was written: to pass over it would be to begin anew where somebody should know.
            problems += refused_files(folder) if unlisted else ()
        verified = not unlisted and not problems and not is_beside_damaged
    except OSError as error:  # the folder is deleted while it is looked at, or its disk fails
        problems.append(f"it cannot be read: {error.strerror or error}")
    said = manifest or Manifest(step=None, created="")
    return Checked(
        path=folder,
        step=step,
        problems=_said_once(problems),
        remarks=tuple(remarks),
        verified=verified,
        verdict=said.verdict,
        undone=said.undone,
    )


def _without_checksums(names: list[str], *, is_all: bool) -> str:
    if is_all:
        return "there are no checksums: only its structure was looked at"
    told = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"its manifest has no checksum of {told}: only their structure was looked at"


def _said_once(problems: list[str]) -> tuple[str, ...]:
    """Leave out what another sentence says too: a file that is missing is missing for every check."""
    return tuple(
        text for text in dict.fromkeys(problems) if not any(other.startswith(f"{text}:") for other in problems)
    )


def _differences(folder: Path, manifest: Manifest, *, thorough: bool) -> list[tuple[str, str]]:
    """Compare a folder with its manifest, by file; files that came later are nobody's business."""
    told: list[tuple[str, str]] = []
    step = step_of(folder)
    if manifest.step is not None and step is not None and manifest.step != step:
        told.append(("", f"its manifest is of step {manifest.step}"))
    for name, expected in manifest.files.items():
        path = folder / name
        problem = why_no_file(path)
        if problem is None:
            size = path.stat().st_size
            if size != expected.size:
                problem = f"{name} has {size} bytes where {expected.size} were written"
            elif thorough:
                problem = _other_content(path, name, expected.xxh3)
        if problem is not None:
            told.append((name, problem))
    return told


def differs_beside(folder: Path) -> str | None:
    """Say what is wrong with what we have put beside a checkpoint, by its manifest; None where nothing is known of it."""
    try:
        manifest = manifest_of_now(folder)
        if manifest is None:
            return WRITTEN_OVER if read_manifest(folder) is not None else None
    except (ManifestError, OSError):
        return None
    return "; ".join(_differences_among(folder, manifest, BESIDE)) or None


def _differences_among(folder: Path, manifest: Manifest, names: Collection[str]) -> list[str]:
    some = {name: mark for name, mark in manifest.files.items() if name in names}
    return [told for _, told in _differences(folder, replace(manifest, step=None, files=some), thorough=True)]


def problems_of_weights(folder: Path) -> tuple[str, ...]:
    """Say why the weights of a checkpoint are not to be loaded, whatever else of it is there."""
    try:
        looked = Structure(folder, frozenset(), thorough=False)
        problems = list(looked.weights_problems())
        manifest = manifest_of_now(folder)
        problems += () if manifest is None else _differences_among(folder, manifest, looked.needed)
    except ManifestError as error:
        return (str(error),)
    except OSError as error:
        return (f"it cannot be read: {error.strerror or error}",)
    return _said_once(problems)


def refused_files(folder: Path, among: Collection[str] | None = None) -> list[str]:
    """Say which files that a resume loads beside the weights torch refuses to load, and why; needs torch."""
    is_of_a_loop = (folder / PLACE).exists()  # which holds plain values where a Trainer has arrays
    names = sorted(path.name for path in folder.iterdir())
    told = (
        problem_of_pickle(folder / name, holds_arrays=RNG.fullmatch(name) is not None and not is_of_a_loop)
        for name in names
        if (name in LOADED or RNG.fullmatch(name)) and (among is None or name in among)
    )
    return [problem for problem in told if problem is not None]


def _other_content(path: Path, name: str, xxh3: str) -> str | None:
    try:
        return None if mark_of(path).xxh3 == xxh3 else f"{name} is damaged: its checksum is not the one written down"
    except FolderChangingError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"

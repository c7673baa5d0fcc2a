"""From what a script that cannot resume by itself goes on: the newest checkpoint that is whole and older than the trouble.

Checkpoints of a Hugging Face Trainer are looked at as everywhere in the package: checksums, structure, verdict. Of other
scripts, those of PyTorch, accelerate, Lightning, DCP and safetensors are recognised by what is in them. Nothing is unpickled,
nothing is written, and no framework is imported.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..snapshots.checkpoint_check import check
from ..snapshots.file_checks import problem_of_torch_file, read_json, safetensors_names, why_no_file
from ..snapshots.manifest import FILE_NAME, ManifestError, manifest_of_now, step_of

DEEPEST = 3
"""Folders below the run directory in which checkpoints are looked for."""
MOST_ENTRIES = 20_000
MOST_REASONS = 20
"""Checkpoints that are looked at from the newest on; where so many are bad, something else is wrong."""
_ZIPPED = frozenset({".pt", ".pth", ".ckpt", ".bin"})
_FILES = _ZIPPED | {".safetensors"}
_OURS = frozenset({"healing", "heal-runs", "wandb", "mlruns", "runs", "lightning_logs_archive", "__pycache__"})
_PARTS = re.compile(
    r"(?:optimizer|scheduler|scaler|rng_state|random_states|training_args|sampler|dl_state|custom_checkpoint)"
)
"""Beginnings of names of files that are part of a checkpoint and none by themselves."""
_WEIGHTS = re.compile(
    r"(?:pytorch_)?model(?:[-_]\d+(?:-of-\d+)?)?\.(?:safetensors|bin)|adapter_model\.(?:safetensors|bin)"
    r"|.*\.distcp|mp_rank_.*\.pt|.*model_optim_rng\.pt"
)
_UNFINISHED = re.compile(
    r"\.?(?:tmp|temp|incomplete|partial)\b|.*[._-](?:tmp|temp|incomplete|partial|part|writing)|\.unfinished-.*",
    re.IGNORECASE,
)
_WATCHED = ("loss", "grad_norm")


class Sound(NamedTuple):
    """What to go on from; a path of None means from the start."""

    path: Path | None
    passed_over: tuple[str, ...] = ()
    """Newer ones that were not taken, and why, one sentence each."""

    def __str__(self) -> str:
        """Say it in a sentence."""
        said = f"{self.path} is gone on from" if self.path is not None else "there is no checkpoint to go on from"
        return f"{said}; passed over: {'; '.join(self.passed_over)}" if self.passed_over else said


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path
    step: int
    """The number in the name of a Trainer's folder; -1 of all others."""
    written_s: float
    """When it was completed."""


def written(folder: Path) -> dict[Path, float]:
    """Return the checkpoints in and below a folder, and when each was completed; one that is written anew has another time."""
    try:
        return {each.path: each.written_s for each in _found(folder)}
    except OSError:
        return {}


def newest_sound(folder: Path, before_s: float | None = None, *, older: Mapping[Path, float] | None = None) -> Sound:
    """Return the newest checkpoint in and below a folder that can be gone on from, and why newer ones cannot.

    Args:
        folder: The run directory, or the folder that a script writes its checkpoints to.
        before_s: When the first sign of trouble was seen: what was completed later may hold it.
        older: What was `written` when the job began: it belongs to another one. The clock is not asked: it may have gone back.

    """
    passed: list[str] = []
    undone: Path | None = None
    try:
        found = sorted(_found(folder), key=lambda each: (each.step, each.written_s), reverse=True)
    except OSError as error:
        return Sound(None, (f"{folder} cannot be listed: {error.strerror or error}",))
    for candidate in _of_one_trainer(folder, found) or found:
        is_older = (older or {}).get(candidate.path) == candidate.written_s
        why_not = "it is older than this job" if is_older else _why_not(candidate, before_s)
        if why_not is None:
            why_not = _undone(candidate)
            if not why_not:
                return Sound(candidate.path, tuple(passed))
            undone = undone or candidate.path
        passed.append(f"{candidate.path.name}: {why_not}")
        if len(passed) == MOST_REASONS:
            break
    return Sound(undone, tuple(passed))  # for want of another


def _undone(candidate: _Candidate) -> str:
    """Say why the run has gone on from before it; empty where it has not, or nobody knows."""
    try:
        manifest = manifest_of_now(candidate.path) if candidate.step >= 0 else None
    except ManifestError:  # which is why it is not taken
        return ""
    return "" if manifest is None else manifest.undone


def _of_one_trainer(folder: Path, found: list[_Candidate]) -> list[_Candidate]:
    """Return the checkpoints of a Trainer: those in the folder itself, else of the folder that was last written to."""
    of_trainers = [each for each in found if each.step >= 0]
    if not of_trainers:
        return []
    last = max(of_trainers, key=lambda each: (each.path.parent == folder, each.written_s))
    return [each for each in of_trainers if each.path.parent == last.path.parent]


def _why_not(candidate: _Candidate, before_s: float | None) -> str | None:
    if before_s is not None and candidate.written_s >= before_s:
        return "it was written after the first sign of trouble"
    if candidate.step >= 0 and not _is_of_another_program(candidate.path):
        checked = check(candidate.path)
        return "; ".join(checked.why_not) or _not_finite_in_log(candidate.path)
    if candidate.path.is_dir():
        return _problem_of_folder(candidate.path)
    return _problem_of_file(candidate.path)


# -- looking -----------------------------------------------------------------------------------------


def _found(folder: Path) -> Iterator[_Candidate]:
    """Yield what looks like a checkpoint; what is inside of one is none.

    Raises:
        OSError: the folder itself is there and cannot be listed.

    """
    waiting, looked_at = [(folder, 0)], 0
    for here, depth in waiting:  # grows while it is gone through
        listed = _listed(here, is_needed=here == folder)
        looked_at += len(listed)
        if looked_at > MOST_ENTRIES:
            return
        is_one = _holds_a_checkpoint([entry.name for entry in listed])  # a model saved at the end, say
        for entry in listed:
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                candidate = None if is_one else _file(path)
            else:
                candidate = _folder(path)
                if candidate is None and depth < DEEPEST and entry.name not in _OURS and entry.name[0] != ".":
                    waiting.append((path, depth + 1))
            if candidate is not None:
                yield candidate


def _listed(folder: Path, *, is_needed: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError:
        if is_needed:
            raise
        return []


def _folder(path: Path) -> _Candidate | None:
    """Return a folder that is a checkpoint as a whole."""
    step = step_of(path)
    if step is not None:
        written = _time_of(path / "trainer_state.json")  # which a Trainer writes last
        return _Candidate(path, step, written if written is not None else _newest_in(path))
    try:
        names = [each.name for each in path.iterdir()]
    except OSError:
        return None
    return _Candidate(path, -1, _newest_in(path)) if _holds_a_checkpoint(names) else None


def _is_of_another_program(folder: Path) -> bool:
    """Say whether a folder only has the name that a Trainer gives: its first file would be weights, its last its state."""
    names = [entry.name for entry in _listed(folder, is_needed=False)]
    is_of_a_trainer = "trainer_state.json" in names or any(_WEIGHTS.fullmatch(name) for name in names)
    return not is_of_a_trainer and any(Path(name).suffix in _FILES for name in names)


def _holds_a_checkpoint(names: list[str]) -> bool:
    """Say whether a folder is one checkpoint of several files: weights, and what they were trained with."""
    has_weights = any(_WEIGHTS.fullmatch(name) for name in names)
    return has_weights and (".metadata" in names or any(_PARTS.match(name) for name in names))


def _file(path: Path) -> _Candidate | None:
    if path.suffix not in _FILES or _PARTS.match(path.name) or path.name.startswith("."):
        return None
    written = _time_of(path)
    return _Candidate(path, -1, written) if written is not None else None


def _newest_in(folder: Path) -> float:
    """Return when the newest file in and below a folder was written; our own files are written later."""
    newest = 0.0
    for place, _, names in os.walk(folder):
        for name in names:
            if not name.startswith("healing_") and name != FILE_NAME:
                newest = max(newest, _time_of(Path(place, name)) or 0.0)
    return newest


def _time_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


# -- judging -----------------------------------------------------------------------------------------


def _not_finite_in_log(folder: Path) -> str | None:
    """Say whether the last thing that a Trainer had logged by then was no number: its weights are in doubt."""
    try:
        state = read_json(folder / "trainer_state.json")
    except ValueError as error:
        return str(error)
    history = state.get("log_history") if isinstance(state, dict) else None
    for entry in reversed(history if isinstance(history, list) else []):
        if not isinstance(entry, dict) or not any(name in entry for name in _WATCHED):
            continue
        for name in _WATCHED:
            value = entry.get(name)
            if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
                return f"its log ends with {name} = {value}"
        return None
    return None


def _problem_of_file(path: Path) -> str | None:
    if _UNFINISHED.fullmatch(path.stem) or _UNFINISHED.fullmatch(path.suffix):
        return "it is called unfinished"
    if path.suffix in _ZIPPED:
        return problem_of_torch_file(path, thorough=True)
    try:
        safetensors_names(path)
    except ValueError as error:
        return str(error)
    return None


def _problem_of_folder(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint of several files: each must be whole by its own format."""
    if _UNFINISHED.fullmatch(folder.name):
        return "it is called unfinished"
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(place, name)
            problem = _problem_of_part(path)
            if problem is not None:
                return problem
    return _problem_of_shards(folder)


def _problem_of_part(path: Path) -> str | None:
    if path.suffix in _FILES:
        return _problem_of_file(path)
    if path.suffix == ".json":
        try:
            read_json(path)
        except ValueError as error:
            return str(error)
        return None
    problem = why_no_file(path)
    if (
        problem is None
        and (path.suffix in (".distcp", ".pkl") or path.name == ".metadata")
        and path.stat().st_size == 0
    ):
        problem = f"{path.name} is empty"
    return problem


def _problem_of_shards(folder: Path) -> str | None:
    """Say which shard is missing that an index promises."""
    for index in folder.glob("*.index.json"):
        try:
            data = json.loads(index.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            return f"{index.name} is damaged: {error}"
        listed = data.get("weight_map") if isinstance(data, dict) else None
        for shard in sorted({str(each) for each in listed.values()} if isinstance(listed, dict) else ()):
            problem = why_no_file(folder / shard)
            if problem is not None:
                return problem
    return None

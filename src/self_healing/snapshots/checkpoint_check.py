"""Whether a checkpoint folder is complete, holds what was written to it, and is not sick.

A stock Trainer that finds no optimizer or no scheduler in a checkpoint silently begins with fresh ones; here that is a
problem like any other. With a manifest sizes and checksums decide; without one the folder is unverified, and the
files' own formats must do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .file_checks import (
    not_finite_in,
    problem_of_pickle,
    problem_of_torch_file,
    read_json,
    read_place,
    safetensors_names,
    shards_of,
    why_no_file,
)
from .manifest import (
    BESIDE,
    STATE,
    FolderChangingError,
    Manifest,
    ManifestError,
    manifest_of_now,
    mark_of,
    read_manifest,
    step_of,
)
from .sharded_index import SHARDED, not_finite_in_shards, sharded_problems
from .verdicts import NOT_JUDGED, StateVerdict

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
           "adapter_model.safetensors", "adapter_model.bin")  # fmt: skip
WRITTEN_OVER = "its manifest is of older files, which were written over by what writes none"
PLACE = "healing_place.json"
"""Where the data of a loop stood; what `guard()` has written holds it."""
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_ENGINE_OPTIMIZER = re.compile(r"optimizer\.bin|optimizer_\d+|rank\d+-of-\d+-optimizer\.pt")
_ENGINE_WEIGHTS = re.compile(r"pytorch_model_fsdp.*")
_DEEPSPEED = re.compile(r"global_step\d+")
_RNG = re.compile(r"rng_state(_\d+)?\.pth")
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
            is_beside_damaged = bool(remarks)
            if is_beside_damaged:
                remarks.append("counts and the history of the rules begin anew, as after a stock resume")
        is_known = not problems
        looked = _Look(folder, agreeing, thorough=thorough)
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
    verdict = manifest.verdict if manifest is not None else NOT_JUDGED
    return Checked(
        path=folder,
        step=step,
        problems=_said_once(problems),
        remarks=tuple(remarks),
        verified=verified,
        verdict=verdict,
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
        looked = _Look(folder, frozenset(), thorough=False)
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
        problem_of_pickle(folder / name, holds_arrays=_RNG.fullmatch(name) is not None and not is_of_a_loop)
        for name in names
        if (name in LOADED or _RNG.fullmatch(name)) and (among is None or name in among)
    )
    return [problem for problem in told if problem is not None]


def _other_content(path: Path, name: str, xxh3: str) -> str | None:
    try:
        return None if mark_of(path).xxh3 == xxh3 else f"{name} is damaged: its checksum is not the one written down"
    except FolderChangingError as error:
        return str(error)
    except OSError as error:
        return f"{name} cannot be read: {error.strerror or error}"


class _Look:
    """The structural checks of one folder."""

    def __init__(self, folder: Path, agreeing: frozenset[str], *, thorough: bool) -> None:
        self.folder = folder
        self._agreeing = agreeing
        """Files whose checksums agree: they need not be read a second time."""
        self._thorough = thorough
        self.needed: set[str] = set()
        """Files that a resume reads, as far as they are there."""
        self.entries = sorted(path.name for path in folder.iterdir())
        self.is_sharded = SHARDED in self.entries
        """We have written it from several ranks: the folder of shards holds all that a resume needs."""
        self.whole: list[Path] = []
        """Weight files whose structure is fine."""

    def _problem_of(self, path: Path) -> str | None:
        name = self._need(path)
        return problem_of_torch_file(path, thorough=self._thorough and name not in self._agreeing)

    def _need(self, path: Path) -> str:
        name = path.relative_to(self.folder).as_posix()
        self.needed.add(name)
        return name

    def _need_all_in(self, folder: Path) -> None:
        self.needed.update(path.relative_to(self.folder).as_posix() for path in folder.rglob("*") if path.is_file())

    def state_problems(self, step: int | None) -> Iterator[str]:
        """Look at `trainer_state.json`, which a Trainer writes last."""
        self._need(self.folder / STATE)
        try:
            state = read_json(self.folder / STATE)
        except ValueError as error:
            yield str(error)
            return
        found = state.get("global_step") if isinstance(state, dict) else None
        if not isinstance(found, int):
            yield "trainer_state.json is damaged: it names no global_step"
        elif step is not None and found != step:
            yield f"trainer_state.json is of step {found}"

    def weights_problems(self) -> Iterator[str]:
        """Look at the weights, be they whole, in shards, adapters, or written by an engine."""
        names = [name for name in self.entries if name in WEIGHTS]
        names += [
            f"{name}/{file}" for name in self.entries for file in _ADAPTERS if (self.folder / name / file).exists()
        ]
        for name in names:
            yield from self._weights_file(self.folder / name)
        sharded = [name for name in self.entries if _ENGINE_WEIGHTS.fullmatch(name)]
        engines = [name for name in self.entries if _DEEPSPEED.fullmatch(name)]
        for name in sharded:
            yield from self._engine_entry(name)
        if engines:
            yield from self._deepspeed_problems()
        if self.is_sharded:
            self._need_all_in(self.folder / SHARDED)
            yield from sharded_problems(self.folder / SHARDED)
        if not (names or sharded or engines or self.is_sharded):
            yield "there are no weights"

    def _weights_file(self, path: Path) -> Iterator[str]:
        try:
            if path.name.endswith(".index.json"):
                self._need(path)
                for shard, tensors in shards_of(path).items():
                    yield from self._shard(path.parent / shard, tensors)
            else:
                yield from self._shard(path, set())
        except ValueError as error:
            yield str(error)

    def _shard(self, path: Path, tensors: set[str]) -> Iterator[str]:
        problem = None
        if path.suffix == ".safetensors":
            self._need(path)
            try:
                missing = tensors - safetensors_names(path)
            except ValueError as error:
                problem = str(error)
            else:
                problem = f"{path.name} lacks {min(missing)}, which the index promises" if missing else None
        else:
            problem = self._problem_of(path)
        if problem is not None:
            yield problem
        else:
            self.whole.append(path)

    def _engine_entry(self, name: str) -> Iterator[str]:
        """Look at what FSDP wrote: a file of torch, or a folder of shards with a table of them."""
        path = self.folder / name
        if not path.is_dir():
            problem = self._problem_of(path)
        else:
            self._need_all_in(path)
            problem = why_no_file(path / ".metadata")
            problem = f"{name} is incomplete: {problem}" if problem is not None else None
        if problem is not None:
            yield problem

    def _deepspeed_problems(self) -> Iterator[str]:
        problem = why_no_file(self.folder / "latest")
        self._need(self.folder / "latest")
        if problem is None:
            tag = (self.folder / "latest").read_text(errors="replace").strip()
            if tag not in self.entries or not any((self.folder / tag).iterdir()):
                problem = f"latest names {tag!r}, which is not there"
            else:
                self._need_all_in(self.folder / tag)
        if problem is not None:
            yield problem

    def optimizer_problems(self, *, model_only: bool) -> Iterator[str]:
        """Look at what a resume needs beside the weights; what is there must be whole, asked for or not."""
        by_engine = [name for name in self.entries if _ENGINE_OPTIMIZER.fullmatch(name)]
        has_deepspeed = any(_DEEPSPEED.fullmatch(name) for name in self.entries)
        needed = not model_only and not has_deepspeed and not self.is_sharded
        yield from self._torch_file("optimizer.pt", is_needed=needed and not by_engine, instead="optimizer")
        for name in by_engine:
            yield from self._engine_entry(name)
        yield from self._torch_file("scheduler.pt", is_needed=needed, instead="learning-rate schedule")
        for name in [name for name in self.entries if _RNG.fullmatch(name) or name == "scaler.pt"]:
            yield from self._torch_file(name, is_needed=False, instead="")

    def place_problems(self) -> Iterator[str]:
        """Look at where a loop stood: its data, and its random numbers, which no loop goes on without."""
        if PLACE not in self.entries:
            return
        try:
            read_place(self.folder / PLACE)
        except ValueError as error:
            yield str(error)
        if not any(_RNG.fullmatch(name) for name in self.entries):
            yield "rng_state.pth is missing: the loop would go on with other random numbers"

    def _torch_file(self, name: str, *, is_needed: bool, instead: str) -> Iterator[str]:
        if name in self.entries:
            problem = self._problem_of(self.folder / name)
            if problem is not None:
                yield problem
        elif is_needed:
            yield f"{name} is missing: training would go on with a fresh {instead}"

    def remarks(self, *, model_only: bool) -> Iterator[str]:
        """Say what a resume from here would lack without being wrong."""
        if model_only:
            if "optimizer.pt" not in self.entries and not self.is_sharded:
                yield "it holds the model only: the optimizer and its schedule start anew"
        elif not self.is_sharded and not any(_RNG.fullmatch(name) for name in self.entries):
            yield "there is no rng_state.pth: the run goes on with other random numbers"

    def values_that_are_not_finite(self, looked_at: Collection[str], never_finite: Collection[str]) -> Iterator[str]:
        """Read the weights that are whole, but for files that somebody has looked at; some tensors never were finite."""
        shards = [self.folder / SHARDED] if self.is_sharded else []
        unseen = [path for path in self.whole if path.relative_to(self.folder).as_posix() not in looked_at]
        for path in (*unseen, *shards):
            try:
                bad = not_finite_in(path) if path not in shards else not_finite_in_shards(path)
            except ValueError as error:
                yield str(error)
                continue
            bad = [name for name in bad if name not in never_finite]
            if bad:
                yield f"{path.name} holds values that are not finite: {', '.join(bad[:3])}"

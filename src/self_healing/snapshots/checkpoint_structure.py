"""Whether the files of a checkpoint folder are there and have the form of what they are, whoever has written them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from .file_checks import (
    not_finite_in,
    problem_of_torch_file,
    read_json,
    read_place,
    safetensors_names,
    shards_of,
    why_no_file,
)
from .manifest import STATE
from .sharded_index import SHARDED, not_finite_in_shards, sharded_problems

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
           "adapter_model.safetensors", "adapter_model.bin")  # fmt: skip
PLACE = "healing_place.json"
"""Where the data of a loop stood; what `guard()` has written holds it."""
_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
_ENGINE_OPTIMIZER = re.compile(r"optimizer\.bin|optimizer_\d+|rank\d+-of-\d+-optimizer\.pt")
_ENGINE_WEIGHTS = re.compile(r"pytorch_model_fsdp.*")
_DEEPSPEED = re.compile(r"global_step\d+")
RNG = re.compile(r"rng_state(_\d+)?\.pth")


class Structure:
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
        for name in [name for name in self.entries if RNG.fullmatch(name) or name == "scaler.pt"]:
            yield from self._torch_file(name, is_needed=False, instead="")

    def place_problems(self) -> Iterator[str]:
        """Look at where a loop stood: its data, and its random numbers, which no loop goes on without."""
        if PLACE not in self.entries:
            return
        try:
            read_place(self.folder / PLACE)
        except ValueError as error:
            yield str(error)
        if not any(RNG.fullmatch(name) for name in self.entries):
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
        elif not self.is_sharded and not any(RNG.fullmatch(name) for name in self.entries):
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

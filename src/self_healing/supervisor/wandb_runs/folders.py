"""Which runs have a folder, under a working directory and where WANDB_DIR points to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from .lines import read_folder_name

_NAMES = ("wandb", ".wandb")
DEEPEST = 5
"""Folders between the working directory and `wandb`: Hydra's outputs/<day>/<time> and a few more."""
MOST_ENTRIES = 20_000
LONGEST_S = 2.0


class RunFolder(NamedTuple):
    """The folder of one run."""

    path: str
    run_id: str
    is_offline: bool


class Folders(NamedTuple):
    """The folders of runs at one moment."""

    near: frozenset[RunFolder]
    """In `wandb` of the working directory itself, and of WANDB_DIR."""
    deep: frozenset[RunFolder] | None
    """Further down; None where that was too much to look through."""

    def new_since(self, before: Folders) -> frozenset[RunFolder]:
        """Return those that were not there before; of the deep ones only where all were seen both times."""
        near = self.near - before.near
        if self.deep is None or before.deep is None:
            return near
        return near | self.deep - before.deep - before.near


def look(cwd: Path, environ: Mapping[str, str]) -> Folders:
    """Look for the folders of runs; what cannot be read holds none."""
    places = [cwd]
    if environ.get("WANDB_DIR"):
        places.append(cwd / os.path.expanduser(environ["WANDB_DIR"]))  # noqa: PTH111  # a Path would raise without a home
    near = frozenset(found for place in places for name in _NAMES for found in _runs_in(str(place / name)))
    return Folders(near, _deep(cwd))


def is_under(folder: RunFolder, cwd: Path) -> bool:
    """Say whether a folder really lies under the working directory, and not behind a link that leads elsewhere."""
    path = Path(folder.path)
    try:
        return not path.is_symlink() and path.is_dir() and path.resolve().is_relative_to(cwd.resolve())
    except OSError:
        return False


def _runs_in(wandb_folder: str) -> Iterator[RunFolder]:
    for entry in _entries(wandb_folder):
        name = read_folder_name(entry.name)
        if name is not None and _is_folder(entry):
            yield RunFolder(entry.path, name.run_id, name.is_offline)


def _deep(cwd: Path) -> frozenset[RunFolder] | None:
    """Walk down, nearest folders first, until all is seen or it is too much."""
    found: set[RunFolder] = set()
    level, seen, end_s = [str(cwd)], 0, time.monotonic() + LONGEST_S
    for _ in range(DEEPEST + 1):
        below: list[str] = []
        for folder in level:
            for entry in _entries(folder):
                seen += 1
                if seen > MOST_ENTRIES or time.monotonic() > end_s:
                    return None
                if not _is_folder(entry):
                    continue
                if entry.name in _NAMES:
                    found.update(_runs_in(entry.path))
                elif not entry.name.startswith("."):
                    below.append(entry.path)
        level = below
    return frozenset(found)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False

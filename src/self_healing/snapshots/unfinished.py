"""Checkpoint folders while they are written: each has another name until it is whole, and then takes its place by a rename.

One that is replaced is first put aside, so that at every moment a whole one can be found: here, or by `bring_back`. What
processes that were killed have left under such names is removed by whoever saves in the folder next. Its lock keeps
other runs out of it; the number in a name is for file systems that have no locks.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

logger = logging.getLogger("self_healing.snapshots")

UNFINISHED = ".unfinished"
"""How the name of a folder begins that is being written, or was put aside for a newer one."""
_LEFT = re.compile(r"\.unfinished-(?:sharded-\d+|(?P<older>older-)?(?P<name>checkpoint-\d+)-(?P<process>\d{1,9}))")
_in_use: set[Path] = set()
"""What this process writes at this moment, by whichever thread: another one may have had its number."""


class _Left(NamedTuple):
    path: Path
    put_aside: Path | None
    """The name that it had, where it was put aside for a newer one."""


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when the block ends; where that raises nothing is left of it.

    Raises:
        OSError: it cannot be written.

    """
    remove_what_was_left(folder.parent)
    unfinished = folder.with_name(f"{UNFINISHED}-{folder.name}-{os.getpid()}")
    with _using(unfinished):
        try:
            unfinished.mkdir(parents=True)
            yield unfinished
            put_in_place(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # nothing, where it has its name


def put_in_place(unfinished: Path, folder: Path) -> None:
    """Give a folder that is whole its name; one that has it already makes room.

    Raises:
        OSError: it cannot be renamed; what had the name has it still.

    """
    older = folder.with_name(f"{UNFINISHED}-older-{folder.name}-{os.getpid()}")
    with _using(older):
        shutil.rmtree(older, ignore_errors=True)
        if folder.exists():
            folder.rename(older)
        try:
            unfinished.rename(folder)
        except OSError:
            if older.exists():
                older.rename(folder)
            raise
        shutil.rmtree(older, ignore_errors=True)


def bring_back(run_dir: str | os.PathLike[str]) -> None:
    """Give checkpoints their names back whose process was killed before the newer ones had them; nothing else is touched."""
    for left in _left_in(Path(run_dir)):
        if left.put_aside is None or left.put_aside.exists():
            continue
        try:
            left.path.rename(left.put_aside)
        except OSError as error:
            if not left.put_aside.exists():  # else another rank was faster
                logger.warning("%s cannot be named %s again: %s", left.path, left.put_aside.name, error.strerror)


def remove_what_was_left(run_dir: str | os.PathLike[str]) -> None:
    """Remove what processes that are gone have left; for whoever alone saves in this folder."""
    bring_back(run_dir)
    for left in _left_in(Path(run_dir)):
        if left.put_aside is None or left.put_aside.exists():
            shutil.rmtree(left.path, ignore_errors=True)


def _left_in(run_dir: Path) -> list[_Left]:
    """Return what lies here under our names, and is nobody's any more."""
    found = []
    for path in sorted(run_dir.glob(f"{UNFINISHED}-*")):
        match = _LEFT.fullmatch(path.name)
        if match is None or _is_used(path, int(match["process"] or os.getpid())):
            continue
        found.append(_Left(path, path.with_name(match["name"]) if match["older"] else None))
    return found


def _is_used(path: Path, process: int) -> bool:
    if process == os.getpid():
        return path.resolve() in _in_use
    try:
        return psutil.Process(process).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it is there, and somebody else's
        return True


def begin_using(path: Path) -> None:
    """Have a folder left alone that this process, or ranks together with it, are about to write."""
    _in_use.add(path.resolve())  # a run may be called by more names than one


def end_using(path: Path) -> None:
    """Take note that nobody writes a folder any more."""
    _in_use.discard(path.resolve())


@contextmanager
def _using(path: Path) -> Iterator[None]:
    begin_using(path)
    try:
        yield
    finally:
        end_using(path)

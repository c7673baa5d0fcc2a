"""What a run's own file says of the place it is sent to; it may say nothing yet when a process is killed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...readers.protobuf import Damaged, Field, fields
from .folders import RunFolder

_FILE_HEADER = 7
_BLOCK = 32 * 2**10
_HEADER = struct.Struct("<IHB")
_WHOLE = 1
_RUN, _RUN_ID, _ENTITY, _PROJECT = 17, 1, 2, 3
"""Numbers of fields: the run in a record, and three of its own."""


class Place(NamedTuple):
    """An entity and a project, either empty where the file does not name it."""

    entity: str
    project: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))

    def fits(self, entity: str | None, project: str) -> bool:
        """Say whether another place can be the same."""
        is_same_entity = not self.entity or not entity or self.entity == entity
        return is_same_entity and (not self.project or self.project == project)


def recorded_place(folder: RunFolder) -> Place | None:
    """Return where a run's file says that it belongs; None where it says nothing that can be read."""
    path = Path(folder.path, f"run-{folder.run_id}.wandb")
    try:
        if path.is_symlink() or not path.is_file():
            return None
        with path.open("rb") as file:
            begin = file.read(_BLOCK)  # the run is among the first records
    except OSError:
        return None
    try:
        for record in _whole_records(begin):
            for found in fields(record):
                if found.number == _RUN:
                    return _place(found, folder.run_id)
    except Damaged:
        return None
    return None


def _place(run: Field, run_id: str) -> Place | None:
    texts = {inner.number: inner.text() for inner in run.message() if inner.number in (_RUN_ID, _ENTITY, _PROJECT)}
    return Place(texts.get(_ENTITY, ""), texts.get(_PROJECT, "")) if texts.get(_RUN_ID) == run_id else None


def _whole_records(begin: bytes) -> Iterator[bytes]:
    """Yield the records that lie within the first block."""
    place = _FILE_HEADER
    while place + _HEADER.size <= len(begin):
        _, size, kind = _HEADER.unpack_from(begin, place)
        place += _HEADER.size
        if kind != _WHOLE or place + size > len(begin):
            return
        yield begin[place : place + size]
        place += size

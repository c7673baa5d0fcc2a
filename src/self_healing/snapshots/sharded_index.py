"""`sharded/index.json`: which tensors the shards of a checkpoint hold, where each part of them lies, and whether all is there.

torch writes the same as a pickle (`.metadata`), for its own tools. We never read that: unpickling can run anything.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from .file_checks import is_finite, read_json, why_no_file
from .file_marks import may_name_a_file, opened

SHARDED = "sharded"
"""The folder in a checkpoint."""
INDEX = "index.json"
STATE = "state.json"
"""What is the same on all ranks besides large tensors."""
VERSION = 1
MODEL = "model."
"""How the names of weights begin."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a tensor: where it belongs, and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    begin: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor."""

    dtype: str
    size: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as the file holds it."""
        pieces = [[list(p.offsets), list(p.sizes), p.file, p.begin, p.length] for p in self.pieces]
        return {"dtype": self.dtype, "size": list(self.size), "pieces": pieces}


def index_to_json(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return an index as the file holds it."""
    return {"v": VERSION, "tensors": {name: entry.to_json() for name, entry in entries.items()}}


def read_index(folder: Path) -> dict[str, Entry]:
    """Read the index of a folder of shards.

    Raises:
        ValueError: it cannot be read or understood; the text says why.

    """
    match read_json(folder / INDEX):
        case {"v": int(version), "tensors": dict(tensors)} if version == VERSION:
            return {name: _entry(name, given) for name, given in tensors.items()}
        case {"v": int(version)} if version > VERSION:
            raise ValueError(f"{INDEX} is of version {version}, and this package knows {VERSION}")
        case _:
            raise ValueError(f"{INDEX} is damaged: it lists no tensors")


def _entry(name: str, given: object) -> Entry:
    match given:
        case {"dtype": str(dtype), "size": list(size), "pieces": list(pieces)} if _are_counts(size):
            return Entry(dtype, tuple(size), tuple(_piece(name, each, len(size)) for each in pieces))
        case _:
            raise ValueError(f"{INDEX} is damaged: it tells nothing of {name}")


def _piece(name: str, given: object, dims: int) -> Piece:
    match given:
        case [list(offsets), list(sizes), str(file), int(begin), int(length)]:
            if _are_counts([*offsets, *sizes, begin, length]) and len(offsets) == len(sizes) == dims:
                if PurePosixPath(file).name != file or file in ("", "..") or not may_name_a_file(file):
                    raise ValueError(f"{INDEX} names a file outside the folder: {file!r}")
                return Piece(tuple(offsets), tuple(sizes), file, begin, length)
    raise ValueError(f"{INDEX} is damaged: it does not say where {name} lies")


def _are_counts(numbers: list[Any]) -> bool:
    return all(type(number) is int and number >= 0 for number in numbers)


def sharded_problems(folder: Path) -> Iterator[str]:
    """Say what a folder of shards lacks."""
    try:
        entries = read_index(folder)
    except ValueError as error:
        yield str(error)
        return
    problem = why_no_file(folder / STATE)
    if problem is not None:
        yield f"{problem}: the optimizer and its schedule would begin anew"
    if not any(name.startswith(MODEL) for name in entries):
        yield "there are no weights"
    ends: dict[str, int] = {}
    for name, entry in entries.items():
        held = sum(math.prod(piece.sizes) for piece in entry.pieces)
        fit = all(
            at + size <= whole
            for piece in entry.pieces
            for at, size, whole in zip(piece.offsets, piece.sizes, entry.size, strict=True)
        )
        if held != math.prod(entry.size) or not fit:
            yield f"{INDEX} is damaged: the parts of {name} are not the whole of it"
        for piece in entry.pieces:
            ends[piece.file] = max(ends.get(piece.file, 0), piece.begin + piece.length)
    for file, end in ends.items():
        problem = why_no_file(folder / file)
        if problem is None and (size := (folder / file).stat().st_size) < end:
            problem = f"{file} is cut short: it has {size} bytes, and parts of tensors lie up to {end}"
        if problem is not None:
            yield problem


def not_finite_in_shards(folder: Path) -> list[str]:
    """Return the weights that hold values which are not finite, reading one part after the other.

    Raises:
        ValueError: they cannot be loaded; the text says why.

    """
    from pickle import UnpicklingError  # noqa: PLC0415  # only its error

    import torch  # noqa: PLC0415  # only whoever asks for this needs it

    bad: list[str] = []
    for name, entry in read_index(folder).items():
        if not name.startswith(MODEL):
            continue
        for piece in entry.pieces:
            try:
                with opened(folder / piece.file) as file:
                    file.seek(piece.begin)
                    part = torch.load(io.BytesIO(file.read(piece.length)), map_location="cpu", weights_only=True)
            except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
                raise ValueError(f"{name} cannot be loaded from {piece.file}: {error}") from error
            if not is_finite(part):
                bad.append(name.removeprefix(MODEL))
                break
    return bad

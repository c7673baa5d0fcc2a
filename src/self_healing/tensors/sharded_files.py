"""The files that torch's distributed checkpoints are made of, as we write and read them: no pickle is ever read.

torch lists what lies where in a pickle, and keeps anything but tensors as pickles too. Beside its list we write our own as
JSON, and read that; besides tensors there is nothing in these files, and tensors are loaded as such alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from ..snapshots.sharded_index import INDEX, Entry, Piece, index_to_json


class ShardedWriter(FileSystemWriter):
    """Writes what each rank holds, and what belongs beside it, at the moments at which all ranks hear of a failure."""

    def __init__(self, path: Path, *, own: Callable[[Path], None], complete: Callable[[Path], None]) -> None:
        """Prepare to write.

        Args:
            path: The folder, the same for all ranks.
            own: Writes what a rank has beside tensors; called on every rank.
            complete: Is called on the first rank when the files of all ranks are there.

        """
        super().__init__(path, single_file_per_rank=True, sync_files=True, overwrite=True)
        self._own, self._complete = own, complete

    def prepare_global_plan(self, plans: Any) -> Any:
        """Remove what a save that did not end has left: on the first rank, before anybody writes."""
        for path in Path(self.path).iterdir():
            path.unlink()
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the part of this rank."""
        self._own(Path(self.path))
        return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: Any) -> None:
        """List what all have written, and have it made complete."""
        super().finish(metadata, results)
        folder = Path(self.path)
        write_json(folder / INDEX, index_to_json(_entries(metadata)))
        self._complete(folder)


class ShardedReader(FileSystemReader):
    """Reads what our own index lists."""

    def __init__(self, path: Path, entries: Mapping[str, Entry]) -> None:
        super().__init__(path)
        self._entries = entries

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
        """Return the index in torch's own terms."""
        tensors: dict[str, Any] = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=dtype_of(entry)),
                torch.Size(entry.size),
                [ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in entry.pieces],
            )
            for name, entry in self._entries.items()
        }
        stored = {
            MetadataIndex(name, piece.offsets, number): _StorageInfo(piece.file, piece.begin, piece.length)
            for name, entry in self._entries.items()
            for number, piece in enumerate(entry.pieces)
        }
        return Metadata(tensors, planner_data={name: (name,) for name in tensors}, storage_data=stored)


class OnlyTensors(DefaultLoadPlanner):
    """Plans to read tensors; torch would unpickle whatever is none."""

    def load_bytes(self, read_item: Any, value: Any) -> NoReturn:
        """Refuse."""
        del value
        raise ValueError(f"{read_item.dest_index.fqn} is no tensor")


def dtype_of(entry: Entry) -> torch.dtype:
    """Return the type of a tensor.

    Raises:
        ValueError: there is no such type.

    """
    found = getattr(torch, entry.dtype, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{INDEX} is damaged: {entry.dtype!r} is no type of tensors")  # noqa: TRY004
    return found


def write_json(path: Path, content: Any) -> None:
    """Write a file of JSON and have it reach the disk."""
    with path.open("w", encoding="ascii") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def _entries(metadata: Any) -> dict[str, Entry]:
    stored = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
    found: dict[str, Entry] = {}
    for name, tensor in metadata.state_dict_metadata.items():
        pieces = []
        for chunk in tensor.chunks:
            info = stored[name, tuple(chunk.offsets)]
            pieces.append(Piece(tuple(chunk.offsets), tuple(chunk.sizes), info.relative_path, info.offset, info.length))
        dtype = str(tensor.properties.dtype).removeprefix("torch.")
        found[name] = Entry(dtype, tuple(tensor.size), tuple(pieces))
    return found

"""States that another process has left in shared memory: each is whole and can be read, or is refused with the reason.

Nothing is mapped: a file that is cut off while it is read is an error here, and would end a process that has mapped it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import xxhash

from .shared_folder import STATE, FolderGoneError, OwnFolder, SharedMemoryError, root_path
from .shared_index import LONGEST, BlockMark, StateIndex, TensorMark, decoded

_CHUNK = 8 << 20
_MOST_THREADS = 8


class StateRefusedError(SharedMemoryError):
    """A state is not what its index says."""


@dataclass(frozen=True, slots=True)
class RefusedState:
    """Something that looks like a state and is not to be used."""

    file: str
    because: str

    def __str__(self) -> str:
        return f"{self.file} is refused: {self.because}"


@dataclass(frozen=True, slots=True, eq=False)
class PublishedState:
    """A state that is what it was when it was published."""

    index: StateIndex
    file: str
    folder: OwnFolder

    @property
    def step(self) -> int:
        """The last step whose update it holds."""
        return self.index.step

    @property
    def tensors(self) -> Mapping[str, TensorMark]:
        """Where each tensor lies."""
        return self.index.tensors

    def read(self, name: str) -> bytearray:
        """Return the bytes of a tensor, in the order of memory.

        Raises:
            KeyError: there is no tensor of that name.
            StateRefusedError: they cannot be read any more.

        """
        mark = self.index.tensors[name]
        content = bytearray(mark.nbytes)
        if content:
            self.read_into(name, memoryview(content))
        return content

    def read_into(self, name: str, target: memoryview) -> None:
        """Read a tensor to where there is room for it.

        Raises:
            KeyError: there is no tensor of that name.
            StateRefusedError: it cannot be read any more.

        """
        mark = self.index.tensors[name]
        if target.nbytes != mark.nbytes:
            raise ValueError(f"{name} has {mark.nbytes} bytes, and there is room for {target.nbytes}")
        if mark.nbytes:
            block = self.index.blocks[mark.block]
            _with_block(self.folder, block, lambda file: _read(file, target.cast("B"), mark.offset, block.file))


def read_states(run: str, *, base: Path | None = None) -> list[PublishedState | RefusedState]:
    """Return all states of a run, the newest first, and what was refused."""
    return list(iter_states(run, base=base))


def iter_states(run: str, *, base: Path | None = None) -> Iterator[PublishedState | RefusedState]:
    """Yield the states of a run, the newest first, each when all of it was looked at: that takes a while for large ones.

    Nothing is yielded where the run has left nothing. The run must not be alive, or it may change what it has published.
    """
    root = root_path(base)
    try:
        folder = OwnFolder(root / run, within=OwnFolder(root))
    except FolderGoneError:
        return
    except SharedMemoryError as error:
        yield RefusedState(str(root / run), str(error))
        return
    found: list[tuple[str, StateIndex]] = []
    for name in folder.names():
        if STATE.fullmatch(name):
            try:
                found.append((name, _index(folder, name, run)))
            except (SharedMemoryError, ValueError, OSError) as error:
                yield RefusedState(name, str(error))
    for name, index in sorted(found, key=lambda each: (-each[1].step, -each[1].created_s)):
        try:
            _verify(folder, index)
        except (SharedMemoryError, OSError) as error:
            yield RefusedState(name, str(error))
        else:
            yield PublishedState(index, name, folder)


def newest_step(run: str, since_s: float, *, base: Path | None = None) -> int | None:
    """Return the newest step that a run has left a state of since a time, by what is said of the states alone."""
    root = root_path(base)
    steps = []
    try:
        folder = OwnFolder(root / run, within=OwnFolder(root))
        for name in filter(STATE.fullmatch, folder.names()):
            index = _index(folder, name, run)
            steps += [index.step] if index.created_s >= since_s else []
    except (SharedMemoryError, ValueError, OSError):  # whoever goes on from it says what is wrong with it
        pass
    return max(steps, default=None)


def _index(folder: OwnFolder, name: str, run: str) -> StateIndex:
    descriptor = folder.read_only(name)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(LONGEST + 1024)
    index = decoded(content)
    if index.run != run:
        raise StateRefusedError(f"it is a state of another run, {index.run}")
    return index


def _verify(folder: OwnFolder, index: StateIndex) -> None:
    """Compare everything with its hashes.

    Raises:
        SharedMemoryError: something differs or cannot be used.

    """
    for block in index.blocks:
        _with_block(folder, block, lambda file, block=block: _verify_block(file, block, index.slice_bytes))  # type: ignore[misc]


def _with_block(folder: OwnFolder, block: BlockMark, do: Callable[[int], None]) -> None:
    file = folder.read_only(block.file)
    try:
        size = os.fstat(file).st_size
        if size != block.size:
            raise StateRefusedError(f"{block.file} has {size} bytes where {block.size} were written")
        do(file)
    finally:
        os.close(file)


def _verify_block(file: int, block: BlockMark, slice_bytes: int) -> None:
    def hashed(number: int) -> str:
        begin = number * slice_bytes
        return _hash(file, begin, min(begin + slice_bytes, block.used), block.file)

    threads = max(1, min(_MOST_THREADS, os.cpu_count() or 1, len(block.hashes)))
    with ThreadPoolExecutor(threads, thread_name_prefix="shared-state-hash") as pool:
        for number, found in enumerate(pool.map(hashed, range(len(block.hashes)))):
            if found != block.hashes[number]:
                raise StateRefusedError(f"the checksum of slice {number} of {block.file} differs")


def _hash(file: int, begin: int, end: int, name: str) -> str:
    digest, buffer = xxhash.xxh3_64(), memoryview(bytearray(min(_CHUNK, end - begin)))
    for place in range(begin, end, _CHUNK):
        part = buffer[: min(_CHUNK, end - place)]
        _read(file, part, place, name)
        digest.update(part)
    return digest.hexdigest()


def _read(file: int, target: memoryview, offset: int, name: str) -> None:
    done = 0
    while done < len(target):
        count = os.preadv(file, [target[done:]], offset + done)
        if not count:
            raise StateRefusedError(f"{name} is cut off")
        done += count

"""What a file of a checkpoint is recognised by, and how it is read for that."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import xxhash

from ..core.errors import SelfHealingError

_CHUNK = 1 << 20  # the longest time another thread waits for the interpreter's lock: about 0.2 ms of hashing
# A pipe under the name of a file must not be waited for.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class FolderChangingError(SelfHealingError):
    """A checkpoint folder is being written or deleted, so that what was read of it means nothing."""


@dataclass(frozen=True, slots=True)
class FileMark:
    """What a file is recognised by."""

    size: int
    xxh3: str
    """XXH3 with 128 bits, in hexadecimal digits: against accidents, not against forgery."""


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading; anything else under its name is an `OSError` instead of a wait or a crash."""
    descriptor = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def mark_of(path: Path) -> FileMark:
    """Hash a file.

    Raises:
        FolderChangingError: the file changed meanwhile.
        OSError: it cannot be read, or is no regular file.

    """
    with opened(path) as file:
        before = os.fstat(file.fileno())
        digest, size = xxhash.xxh3_128(), 0
        buffer = memoryview(bytearray(_CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or size != after.st_size:
        raise FolderChangingError(f"{path.name} is being written")
    return FileMark(size, digest.hexdigest())


def may_name_a_file(name: str) -> bool:
    """Say whether the operating system can be asked for a file of this name: JSON may hold what no file is called."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a pair of surrogates
        return False
    return "\0" not in name

"""Put a file in place whole or not at all, whatever happens meanwhile.

The data goes to a temporary file in the same folder, then to the disk (fsync), then takes the name (rename), and
the folder goes to the disk too. A reader sees the old file or the new one. A writer killed on the way leaves a
hidden temporary file; the next write removes it, and knows it from one in use by the lock its writer holds.

The file is 0600, like the ledger: exception texts may hold secrets, and masking is a net, not a proof. Whoever
opens it to others (chmod) keeps that: a file of ours that is replaced passes its read and write bits on.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger("self_healing.report")

_PRIVATE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NOT_SUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES, errno.EPERM})
_TRIES = 8


def write_json_atomically(path: str | os.PathLike[str], data: Mapping[str, object]) -> bool:
    """Write data as JSON and say whether it is in place; never raises, a failure is one logged warning."""
    try:
        text = json.dumps(data, indent=2, ensure_ascii=True, allow_nan=False) + "\n"
        replace_file(path, text.encode("ascii"))
    except OSError as error:
        logger.warning("%s: could not be written: %s", path, error.strerror or error)
        return False
    except (TypeError, ValueError, RecursionError, MemoryError) as error:
        logger.warning("%s: could not be written: %s: %s", path, type(error).__name__, error)
        return False
    return True


def replace_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Put a file in place whole or not at all.

    Raises:
        OSError: it cannot be written.

    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    _replace(target, content)
    _sync_folder(target.parent)


def _replace(target: Path, content: bytes) -> None:
    """Write a temporary file and give it the target's name; it is gone afterwards in any case."""
    mode = _mode_for(target)
    temporary, descriptor = _create(target)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            # Still open and with it locked: else another writer could take it for a leftover.
            temporary.replace(target)
        finally:
            os.close(descriptor)
    finally:
        with suppress(OSError):  # normally there is nothing left of this name
            temporary.unlink()


def _create(target: Path) -> tuple[Path, int]:
    """Create a locked temporary file; one that another writer took for a leftover before the lock is tried anew."""
    for _ in range(_TRIES):
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, _FLAGS, _PRIVATE)
        _lock(descriptor)
        if os.fstat(descriptor).st_nlink > 0:
            return temporary, descriptor
        os.close(descriptor)
    raise OSError(errno.EBUSY, "its temporary file was removed again and again")


def _lock(descriptor: int) -> None:
    """Mark a temporary file as in use, where the file system can; elsewhere leftovers are not removed either."""
    with suppress(ImportError, OSError):
        import fcntl  # noqa: PLC0415  # absent on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    places: list[Path] = []
    with suppress(OSError):  # a folder may be writable and yet refuse to be listed
        places.extend(target.parent.iterdir())
    for found in places:
        if found.name.startswith(f".{target.name}.") and found.name.endswith(".tmp"):
            with suppress(ImportError, OSError):  # locked, hence in use; gone meanwhile; or nothing of ours
                _remove_unless_in_use(found)


def _remove_unless_in_use(leftover: Path) -> None:
    import fcntl  # noqa: PLC0415  # absent on Windows

    # O_NONBLOCK: opening a pipe must not wait for a writer.
    descriptor = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        leftover.unlink()
    finally:
        os.close(descriptor)


def _mode_for(target: Path) -> int:
    """Return the mode of the file to come: private, or what the owner made of the one that is there."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return _PRIVATE
    # In a folder open to all, somebody else's file must not decide who reads ours.
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return stat.S_IMODE(status.st_mode) & 0o666 | _PRIVATE if is_ours else _PRIVATE


def _sync_folder(folder: Path) -> None:
    """Bring the new name to the disk; some file systems have no such thing, and there the rename must do."""
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
    finally:
        if descriptor is not None:
            os.close(descriptor)

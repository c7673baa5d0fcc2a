"""Folders in shared memory: that they are ours alone, whether the run of each still lives, and which of them may go.

Everything is reached through descriptors of folders that were looked at after they were opened, so that nobody can put
something else under their names in between. A run lives as long as its lock is held (flock), which ends with its
process however that ends. What a dead run has left is the one thing it can be resumed from without its last steps
being lost, and memory that nobody else can use: it stays for a day, unless somebody needs the room.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from ..core.errors import SelfHealingError

BASE = Path("/dev/shm")  # noqa: S108  # what lies below it is checked
VARIABLE = "SELF_HEALING_SHARED_MEMORY"
"""The environment variable that names another folder in memory, for containers with a small /dev/shm."""
KEPT_S = 24 * 3600.0
"""How long what a dead run has left is kept while nobody needs the room."""
MOST_DEAD = 4
"""How many dead runs are kept: those of a script that crashes again and again, each time in a folder of another name."""
STATE = re.compile(r"[0-9a-f]{8}\.state-\d+\.json")
"""What a published state is called."""

_LOCK = "lock"
_TRASH = ".trash-"
_TRIES = 200
_PAUSE_S = 0.01
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class SharedMemoryError(SelfHealingError):
    """Shared memory cannot be used; the text says why."""


class FolderGoneError(SharedMemoryError):
    """A folder is not there, or was removed meanwhile."""


def root_path(base: Path | None = None) -> Path:
    """Return the folder of this user, below `/dev/shm` unless another one is named."""
    return (base or Path(os.environ.get(VARIABLE) or BASE)) / f"self-healing-{os.geteuid()}"


def run_name(run_dir: str | os.PathLike[str], rank: int = 0) -> str:
    """Return what the folder of a run is called: the same for every attempt that writes to a directory."""
    real = os.path.realpath(run_dir)
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(real).name)[:40].strip("-")
    number = xxhash.xxh3_64(os.fsencode(real)).hexdigest()
    return f"{readable or 'run'}-{number}" + (f"-rank{rank}" if rank else "")


def why_not_ours(status: os.stat_result, *, is_folder: bool) -> str | None:
    """Say why something is not to be trusted; None where it belongs to this user and nobody else may touch it."""
    if not (stat.S_ISDIR if is_folder else stat.S_ISREG)(status.st_mode):
        return (
            f"is {'a symbolic link' if stat.S_ISLNK(status.st_mode) else 'no ' + ('folder' if is_folder else 'file')}"
        )
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return f"is open to others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


class OwnFolder:
    """An open folder that belongs to this user alone."""

    def __init__(self, path: Path, *, within: OwnFolder | None = None, create: bool = False) -> None:
        """Open a folder.

        Raises:
            SharedMemoryError: it is not there or not ours alone, or could be exchanged by somebody else.

        """
        self.path = path
        self.descriptor: int
        name, parent = (path.name, within.descriptor) if within is not None else (str(path), None)
        if within is None:
            _look_at_base(path.parent)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
            problem = why_not_ours(os.stat(name, dir_fd=parent, follow_symlinks=False), is_folder=True)
            if problem is not None:
                raise SharedMemoryError(f"{path} {problem}")
            self.descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=parent)
        except FileNotFoundError as error:
            raise FolderGoneError(f"{path} is not there") from error
        except OSError as error:
            raise SharedMemoryError(f"{path} cannot be used: {error.strerror}") from error
        problem = why_not_ours(os.fstat(self.descriptor), is_folder=True)  # it may be another one by now
        if problem is not None:
            os.close(self.descriptor)
            raise SharedMemoryError(f"{path} {problem}")
        weakref.finalize(self, os.close, self.descriptor).atexit = False

    def names(self) -> list[str]:
        """Return what is in it."""
        with contextlib.suppress(OSError):
            return sorted(os.listdir(self.descriptor))  # noqa: PTH208  # of what is open, not of a name
        return []

    def create(self, name: str) -> int:
        """Create a file and open it."""
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=self.descriptor)

    def read_only(self, name: str) -> int:
        """Open a file that is ours alone.

        Raises:
            SharedMemoryError: it is not there, or not ours alone; the text says why.

        """
        try:
            # Without waiting, should it be a pipe.
            descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=self.descriptor)
        except OSError as error:
            why = "is a symbolic link" if error.errno == errno.ELOOP else f"cannot be opened: {error.strerror}"
            raise SharedMemoryError(f"{name} {why}") from error
        problem = why_not_ours(os.fstat(descriptor), is_folder=False)
        if problem is not None:
            os.close(descriptor)
            raise SharedMemoryError(f"{name} {problem}")
        return descriptor

    def rename(self, name: str, to: str) -> None:
        """Give something another name, in the place of whatever has it."""
        os.rename(name, to, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.descriptor)

    def is_still(self, name: str, descriptor: int) -> bool:
        """Say whether an open thing is what has that name here."""
        with contextlib.suppress(OSError):
            there, open_one = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False), os.fstat(descriptor)
            return (there.st_dev, there.st_ino) == (open_one.st_dev, open_one.st_ino)
        return False

    def nbytes(self) -> int:
        """Return how much memory its files take."""
        return sum(status.st_blocks * 512 for status in self._files())

    def _files(self) -> Iterator[os.stat_result]:
        for name in self.names():
            with contextlib.suppress(OSError):
                yield os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)


def _look_at_base(base: Path) -> None:
    """See that nobody but the administrator can put another folder in the place of ours."""
    try:
        status = base.stat()
    except OSError as error:
        raise SharedMemoryError(f"{base} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise SharedMemoryError(f"{base} is no folder")
    if status.st_uid not in (0, os.geteuid()):
        raise SharedMemoryError(f"{base} belongs to user {status.st_uid}")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise SharedMemoryError(f"{base} can be written by others and is not sticky: they could exchange what is in it")


# -- who lives -------------------------------------------------------------------------------------------


class Lock:
    """The right to a run's folder, until it is released or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _locks.add(self)

    def release(self) -> None:
        """Let another process have it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a copy that a program just being started holds
            os.close(descriptor)

    def forget(self) -> None:
        """Close a forked child's copy, with which it would keep the lock of its dead parent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def _try_lock(folder: OwnFolder) -> Lock | None:
    """Take the lock of a folder; None where a living process has it, or the lock was removed meanwhile."""
    descriptor = os.open(_LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=folder.descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    lock = Lock(descriptor)
    if not folder.is_still(_LOCK, descriptor):
        lock.release()
        return None
    return lock


def take_run(path: Path, name: str) -> tuple[OwnFolder, OwnFolder, Lock]:
    """Open the folder of this user and that of a run for writing, creating them where they are missing.

    Raises:
        SharedMemoryError: a living process has it, or it cannot be used.

    """
    for _ in range(_TRIES):  # somebody may be removing it, or be looking whether it lives
        try:
            root = OwnFolder(path, create=True)
            folder = OwnFolder(path / name, within=root, create=True)
            lock = _try_lock(folder)
        except (FolderGoneError, FileNotFoundError):
            time.sleep(_PAUSE_S)
            continue
        except OSError as error:
            raise SharedMemoryError(f"{path / name} cannot be locked: {error.strerror}") from error
        if lock is not None and root.is_still(name, folder.descriptor):
            return root, folder, lock
        if lock is not None:
            lock.release()
        time.sleep(_PAUSE_S)
    raise SharedMemoryError(f"{path / name} is in use by another process")


# -- what dead runs have left ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeadRun:
    """What a process that is gone has left."""

    name: str
    last_s: float
    """When something was last published or withdrawn in it."""
    nbytes: int
    has_states: bool


def dead_runs(root: OwnFolder, *, besides: str) -> list[DeadRun]:
    """Return what dead runs have left, the oldest first."""
    found = []
    for name in root.names():
        if name == besides or name.startswith(_TRASH):
            continue
        with contextlib.suppress(SharedMemoryError, OSError):  # not ours, or gone: left alone
            folder = OwnFolder(root.path / name, within=root)
            last_s = os.fstat(folder.descriptor).st_mtime
            lock = _try_lock(folder)
            if lock is not None:
                lock.release()
                has_states = any(STATE.fullmatch(each) for each in folder.names())
                found.append(DeadRun(name, last_s, folder.nbytes(), has_states))
    return sorted(found, key=lambda dead: dead.last_s)


def remove_run(root: OwnFolder, name: str, *, lock: Lock | None = None) -> bool:
    """Remove the folder of a run that is dead, or whose lock is ours; say whether it is gone."""
    try:
        folder = OwnFolder(root.path / name, within=root)
        lock = lock or _try_lock(folder)
        if lock is None:
            return False
        trash = _TRASH + secrets.token_hex(4)
        # At once under another name: whoever begins the same run meanwhile makes a folder of its own.
        root.rename(name, trash)
    except (SharedMemoryError, OSError):
        return False
    lock.release()
    _empty(root, trash)
    with contextlib.suppress(OSError):  # there are others
        root.path.rmdir()
    return True


def clean(root: OwnFolder, *, besides: str, now_s: float | None = None) -> list[str]:
    """Remove what nobody will miss: left half removed, without a state, too old, or too many; return the names."""
    now_s = time.time() if now_s is None else now_s
    for name in root.names():
        if name.startswith(_TRASH):
            _empty(root, name)
    dead = dead_runs(root, besides=besides)
    useful = [each for each in dead if each.has_states and now_s - each.last_s <= KEPT_S]
    runs = dict.fromkeys(_without_rank(each.name) for each in reversed(useful))  # the newest first, with all its ranks
    newest = set(list(runs)[:MOST_DEAD])
    kept = {each.name for each in useful if _without_rank(each.name) in newest}
    return [each.name for each in dead if each.name not in kept and remove_run(root, each.name)]


def _without_rank(name: str) -> str:
    return re.sub(r"-rank\d+$", "", name)


def _empty(root: OwnFolder, name: str) -> None:
    with contextlib.suppress(SharedMemoryError, OSError):  # somebody else is at it, or has put something there
        folder = OwnFolder(root.path / name, within=root)
        for each in folder.names():
            folder.remove(each)
        os.rmdir(name, dir_fd=root.descriptor)

"""The folder a run writes to: where its files are, and that only one process writes there."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from .errors import ConfigError, RunDirectoryLocked

logger = logging.getLogger("self_healing.run_directory")

VARIABLE = "SELF_HEALING_RUN_DIR"
"""The environment variable by which a supervisor names the run directory to the processes that it starts."""
ATTEMPT = "SELF_HEALING_ATTEMPT"
"""The environment variable by which a supervisor says for which time it starts a command, from 1."""
DRILL = "SELF_HEALING_DRILL"
"""The environment variable by which `heal drill` has a fault planted into the run of a script."""
_FOLDER = "healing"
EARLIER = "earlier"
"""Where in that folder a supervisor puts the attempts of the job that had the run directory before."""
_NOT_FOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_held: dict[tuple[int, int], RunLock] = {}
"""The locks of this process by device and inode of their file: flock alone cannot tell where it is unsupported."""
_held_guard = threading.Lock()


def run_directory_of(environ: Mapping[str, str]) -> Path | None:
    """Return the run directory that a supervisor has named; None where nobody has."""
    named = environ.get(VARIABLE, "").strip()
    return Path(named).absolute() if named else None


def launch_of(environ: Mapping[str, str]) -> int | None:
    """Return for which time a supervisor has started this process; None where nobody says."""
    said = environ.get(ATTEMPT, "").strip()
    return int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else None


def healing_folder(run_dir: str | os.PathLike[str]) -> Path:
    """Return the folder inside a run directory that holds everything of ours."""
    return Path(run_dir) / _FOLDER


def ledger_path(run_dir: str | os.PathLike[str], rank: int = 0) -> Path:
    """Return where the ledger of a rank lies: `healing/ledger.jsonl`, other ranks `healing/ledger.rank3.jsonl`."""
    return healing_folder(run_dir) / ("ledger.jsonl" if rank == 0 else f"ledger.rank{rank}.jsonl")


def supervisor_ledger_path(run_dir: str | os.PathLike[str]) -> Path:
    """Return where the ledger of a supervisor lies: `healing/ledger.supervisor.jsonl`."""
    return healing_folder(run_dir) / "ledger.supervisor.jsonl"


class RunLock:
    """The right to write to a run directory; it ends with `release()`, with its `with` block or with the process."""

    def __init__(self, path: Path, descriptor: int, identity: tuple[int, int], *, enforced: bool) -> None:
        """Take over an open and locked file; use `lock_run_directory` to get one."""
        self.path = path
        self.enforced = enforced
        """False where the file system knows no locks, so that other processes are not kept out."""
        self._descriptor: int | None = descriptor
        self._identity = identity

    @property
    def held(self) -> bool:
        """Say whether this process still holds the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Let others write to the run directory; a second call does nothing.

        The file stays: removing a lock file lets two processes lock two files of the same name.
        """
        with _held_guard:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is None:
                return
            _held.pop(self._identity, None)
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
        # Closing alone is not enough: a program just being started holds a copy for a moment longer.
        with suppress(ImportError, OSError):
            import fcntl  # noqa: PLC0415  # absent on Windows

            fcntl.flock(descriptor, fcntl.LOCK_UN)
        with suppress(OSError):
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Return the lock itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()

    def _forget(self) -> None:
        """Drop a forked child's copy: a surviving data-loader worker must not keep its dead parent's lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)


def lock_run_directory(run_dir: str | os.PathLike[str], rank: int = 0, *, name: str = "") -> RunLock:
    """Take a rank's lock of a run directory, or one of another name, creating the folder where it is missing.

    Raises:
        RunDirectoryLocked: another process, or this one, holds it; the text says who, since when and what to do.
        ConfigError: the folder or the lock file cannot be used.

    """
    path = healing_folder(run_dir) / (f"lock.{name}" if name else "lock" if rank == 0 else f"lock.rank{rank}")
    if path.parent.is_symlink():
        raise ConfigError(f"{path.parent}: is a symbolic link; remove it or choose another run directory")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _NOT_FOLLOWED, 0o600)
    except OSError as error:
        raise ConfigError(_unusable(path, error)) from error
    taken = False
    try:
        status = os.fstat(descriptor)
        identity = (status.st_dev, status.st_ino)
        with _held_guard:
            if identity in _held:
                raise RunDirectoryLocked(_in_use(path, descriptor))
            enforced = _flock(path, descriptor)
            _held[identity] = lock = RunLock(path, descriptor, identity, enforced=enforced)
        taken = True
    finally:
        if not taken:
            os.close(descriptor)
    _sign(descriptor)
    return lock


def _flock(path: Path, descriptor: int) -> bool:
    """Lock the open file; return False, with a warning, where the file system has no locks."""
    try:
        import fcntl  # noqa: PLC0415  # absent on Windows, where the rest of this module still works

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        reason = "this platform has no file locks"
    except BlockingIOError:
        raise RunDirectoryLocked(_in_use(path, descriptor)) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise ConfigError(_unusable(path, error)) from error
        reason = str(error.strerror)
    else:
        return True
    logger.warning(
        "%s: the file system offers no locks (%s); make sure yourself that no second run uses this directory",
        path,
        reason,
    )
    return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock; a full disk may prevent it, and the lock holds all the same."""
    holder = {"pid": os.getpid(), "host": _host(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)


def _in_use(path: Path, descriptor: int) -> str:
    """Say who holds the lock and what to do; the holder may not have signed yet."""
    holder: object = None
    with suppress(OSError, ValueError):
        holder = json.loads(os.pread(descriptor, 4096, 0))
    match holder:
        case {"pid": int(pid), "host": str(host), "since": str(since)}:
            who = f"process {pid} on {host} since {since}"
            is_us = (pid, host) == (os.getpid(), _host())
            stop = "release the lock this process holds" if is_us else f"end process {pid} on {host}"
        case _:
            who, stop = "another process (it has not written its name yet)", "end that process"
    return (
        f"{path.parent.parent}: the run directory is in use by {who} (lock file {path}). Wait for it to finish, "
        f"{stop}, or choose another run directory. The lock ends with its process; deleting the file does not help."
    )


def _unusable(path: Path, error: OSError) -> str:
    """Say why the lock file cannot be opened."""
    if error.errno == errno.ELOOP:
        return f"{path}: is a symbolic link, which is not followed; remove it"
    return f"{path}: cannot be used as lock file: {error.strerror}; choose a run directory that can be written"


def _host() -> str:
    """Return this machine's name."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "this machine")


def _forget_all() -> None:
    """Close the copies of all locks in a forked child."""
    global _held_guard  # noqa: PLW0603  # another thread may have held it at the moment of the fork
    _held_guard = threading.Lock()
    for lock in _held.values():
        lock._forget()  # noqa: SLF001  # same module
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)

"""Faults of disks and of what lies on them, caused through the operating system; none needs a trainer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class CannotMountError(OSError):
    """This process may not mount anything, or has nothing to mount with; the text says why."""


def flip_bit(path: Path) -> None:
    """Flip one bit in the middle of a file; size and times stay as they are, as when a disk fails."""
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        (byte,) = file.read(1)
        file.seek(stat.st_size // 2)
        file.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def cut_short(path: Path) -> None:
    """Cut a file in half, as a write that was interrupted leaves it."""
    os.truncate(path, path.stat().st_size // 2)


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """Put an empty disk of so many bytes in the place of a folder; what was written to it is gone afterwards.

    Raises:
        CannotMountError: this process may not do that.

    """
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    with _mounted(folder):
        yield


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Allow nobody to write below a folder, not even root, to whom permissions are nothing.

    Raises:
        CannotMountError: this process may not do that.

    """
    _run("mount", "--bind", str(folder), str(folder))
    with _mounted(folder):
        _run("mount", "-o", "remount,ro,bind", str(folder))
        yield


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        # Lazily: a file that is still open must not keep the disk where it is.
        _run("umount", "--lazy", str(folder))


def _run(command: str, *arguments: str) -> None:
    path = shutil.which(command)
    if path is None:
        raise CannotMountError(f"there is no `{command}` here")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)  # noqa: S603  # fixed words
    if done.returncode:
        raise CannotMountError(f"`{command} {' '.join(arguments)}` is not possible: {done.stderr.strip()}")

"""What this machine offers, asked when a check wants to know: disk, memory, limits, clock, ports, driver, packages."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from ...snapshots.budget import free_memory
from ..packages.distributions import installed_needs
from .driver import nvidia_smi

_CUDA = re.compile(r"CUDA Version: *(\d+)\.(\d+)")


class Machine:
    """The machine at hand; `given` are facts that are taken as said, for examples and tests."""

    def __init__(self, given: Mapping[str, object] | None = None) -> None:
        self._given = dict(given or {})

    def _fact(self, name: str, asked: Callable[[], Any]) -> Any:
        return self._given[name] if name in self._given else asked()

    def free_bytes(self, folder: Path) -> int | None:
        """Return the free bytes of the file system that a folder is on."""
        answer: int | None = self._fact("free_bytes", lambda: _free(folder))
        return answer

    def is_writable(self, folder: Path) -> bool:
        """Say whether files can be made in a folder that is there."""
        return bool(self._fact("is_writable", lambda: os.access(folder, os.W_OK | os.X_OK)))

    @property
    def shm_bytes(self) -> int | None:
        """The size of /dev/shm; None where there is none."""
        answer: int | None = self._fact("shm_bytes", lambda: _total(Path("/dev/shm")))  # noqa: S108  # that is its place
        return answer

    @property
    def memory_bytes(self) -> int:
        """The memory that is free: of the machine, or of the container where that is less."""
        return int(self._fact("memory_bytes", free_memory))

    @property
    def open_files(self) -> int:
        """How many files a process may have open; a large number where there is no limit."""
        return int(self._fact("open_files", _open_files))

    @property
    def now_s(self) -> float:
        """What the clock says."""
        return float(self._fact("now_s", time.time))

    def is_port_taken(self, port: int) -> bool:
        """Say whether somebody listens at a port of this machine."""
        return bool(self._fact("taken_ports", lambda: [port] if _is_taken(port) else []).count(port))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs that are here."""
        return tuple(self._fact("gpus", _gpus))

    @property
    def driver_cuda(self) -> tuple[int, int] | None:
        """The newest CUDA that the driver knows; None where there is no driver."""
        answer: tuple[int, int] | None = self._fact("driver_cuda", _driver_cuda)
        return answer

    def has_program(self, name: str, path: str | None = None) -> bool:
        """Say whether a program can be started by its name, with a `PATH` of those who start it."""
        return bool(self._fact("programs", lambda: [name] if shutil.which(name, path=path) else []).count(name))

    def version(self, package: str) -> str | None:
        """Return the version of a package that is installed beside us; None where it is not."""
        installed: Mapping[str, str] | None = self._given.get("packages")  # type: ignore[assignment]
        if installed is not None:
            return installed.get(package)
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def needs(self, package: str) -> tuple[Requirement, ...]:
        """Return what a package that is installed beside us asks for; nothing where it is not."""
        given: Mapping[str, Sequence[str]] | None = self._given.get("needs")  # type: ignore[assignment]
        if given is not None:
            return tuple(Requirement(each) for each in given.get(package, ()))
        return installed_needs(package) or ()

    def can_import(self, module: str) -> bool:
        """Say whether a module of that name is installed beside us; nothing is imported."""
        if "packages" in self._given:
            return self.version(module) is not None
        return importlib.util.find_spec(module) is not None


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _total(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _open_files() -> int:
    import resource  # noqa: PLC0415  # not there on Windows

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _is_taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _gpus() -> tuple[str, ...]:
    return tuple(line for line in nvidia_smi("--query-gpu=name", "--format=csv,noheader").splitlines() if line)


def _driver_cuda() -> tuple[int, int] | None:
    found = _CUDA.search(nvidia_smi())
    return None if found is None else (int(found[1]), int(found[2]))

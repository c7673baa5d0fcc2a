"""What a run ran on: versions and hardware, found without importing a framework or waking a device."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from .. import __version__
from ..snapshots.control_groups import memory_groups, text_of

PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets", "peft", "numpy")
"""The distributions whose versions decide how a run behaves."""

_BROKEN_METADATA = (importlib.metadata.PackageNotFoundError, OSError, KeyError, ValueError, TypeError)


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the frameworks that are installed, by name."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "self_healing": __version__}
    for package in PACKAGES:
        with suppress(*_BROKEN_METADATA):
            found[package] = str(importlib.metadata.version(package))
    return found


def hardware(root: str | os.PathLike[str] = "/") -> dict[str, object]:
    """Return processors, memory and its limit, and the GPUs in use; `root` is where /proc and /sys are looked for."""
    found: dict[str, object] = {
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": None,
        "cgroup_memory_limit_bytes": None,
        "gpus": _gpus(),
    }
    with suppress(psutil.Error, OSError, ValueError, KeyError, RuntimeError):  # a container may hide /proc/meminfo
        memory = int(psutil.virtual_memory().total)
        found["memory_bytes"] = memory
        limit = _cgroup_memory_limit(Path(root))
        # Version 1 says "no limit" by a number larger than any machine.
        found["cgroup_memory_limit_bytes"] = limit if limit is not None and limit < memory else None
    return found


def _gpus() -> list[str]:
    """Return the names of the GPUs, only where torch is loaded and CUDA in use: a report must not start a device."""
    torch = sys.modules.get("torch")
    # Whatever ended the run may have left torch half imported or the driver in a bad state.
    with suppress(AttributeError, RuntimeError, AssertionError, OSError, TypeError):
        if torch is not None and torch.cuda.is_initialized():
            return [str(torch.cuda.get_device_name(index)) for index in range(torch.cuda.device_count())]
    return []


def _cgroup_memory_limit(root: Path) -> int | None:
    """Return the tightest memory limit on this process's control group and the groups above it, both versions."""
    limits: list[int] = []
    for group in memory_groups(root / "sys" / "fs" / "cgroup", root / "proc" / "self" / "cgroup"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(ValueError):  # "max" means no limit
                limits.append(int(text_of(group / name)))
    return min(limits, default=None)

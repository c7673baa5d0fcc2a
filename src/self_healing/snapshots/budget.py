"""How much host memory snapshots may take: a share of what is free, for all processes of a machine together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_memory(cgroup: Path | None = None) -> int:
    """Return the bytes that can still be allocated: what the machine has, or the container where that is less."""
    left = (max(0, most - used) for most, used in _groups(cgroup or CGROUP))
    return min([int(psutil.virtual_memory().available), *left])


def whole_memory(cgroup: Path | None = None) -> int:
    """Return the bytes that there are, in use or not: the machine's, or the container's where that is less."""
    return min([int(psutil.virtual_memory().total), *(most for most, _ in _groups(cgroup or CGROUP))])


def slots_within(nbytes: int, *, free: int, fraction: float, local_ranks: int = 1, most: int) -> int:
    """Return how many states of a size may be kept, at most `most`."""
    return min(most, int(free * fraction / max(1, local_ranks)) // max(1, nbytes))


def _groups(cgroup: Path) -> Iterator[tuple[int, int]]:
    """Yield what a control group of either version may take and takes; one without a limit yields nothing."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        most, now = _number(cgroup / limit), _number(cgroup / used)
        if most is not None and now is not None:
            yield most, max(0, now - _given_up(cgroup / cached))


def _given_up(path: Path) -> int:
    """Return what a group holds of files that were read and are not in use: the kernel gives it up when it is needed."""
    rows = (line.split() for line in _text(path).splitlines())
    cached = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return cached.get("total_inactive_file", cached.get("inactive_file", 0))  # version 1 counts groups below apart


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # another kind of control group, or none
        return ""

"""How much host memory snapshots may take: a share of what is free, for all processes of a machine together."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")


def free_memory(cgroup: Path = CGROUP) -> int:
    """Return the bytes that can still be allocated: what the machine has, or the container where that is less."""
    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _number(cgroup / limit), _number(cgroup / used)
        if most is not None and now is not None:
            free = min(free, max(0, most - now))
    return free


def slots_within(nbytes: int, *, free: int, fraction: float, local_ranks: int = 1, most: int) -> int:
    """Return how many states of a size may be kept, at most `most`."""
    return min(most, int(free * fraction / max(1, local_ranks)) // max(1, nbytes))


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:  # another kind of control group, or none
        return None
    return int(text) if text.isdigit() else None

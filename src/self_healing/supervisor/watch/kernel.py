"""What the kernel tells of a command: processor time of all its processes, and whether memory ran out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")


def processor_seconds(pids: Iterable[int]) -> float:
    """Return how much processor time processes have used so far, with that of children they have reaped."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            total += sum(psutil.Process(pid).cpu_times()[:4])
    return total


def memory_kills() -> int:
    """Return how often the kernel has killed a process of our control group for memory; 0 where it does not say."""
    for path in _event_files():
        try:
            lines = path.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.isdigit():
                return int(count)
    return 0


def _event_files() -> list[Path]:
    own = ""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                own = path.lstrip("/")
    return [_GROUPS / own / "memory.events", _GROUPS / "memory.events", _GROUPS / "memory" / "memory.oom_control"]

"""What the kernel tells of a command: processor time of all its processes, and whether memory ran out."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil

from ...snapshots.control_groups import memory_groups, text_of


def processor_seconds(pids: Iterable[int]) -> float:
    """Return how much processor time processes have used so far, with that of children they have reaped."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            total += sum(psutil.Process(pid).cpu_times()[:4])
    return total


def memory_kills() -> int:
    """Return how often the kernel has killed a process of our control group for memory; 0 where it does not say."""
    for group in memory_groups():
        for file in ("memory.events", "memory.oom_control"):
            for line in text_of(group / file).splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill" and count.isdigit():
                    return int(count)
    return 0

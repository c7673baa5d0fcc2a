"""How much memory is in use between two steps, now and then: what the rule `memory-creep` and the report look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

EVERY = 4
"""Steps between two looks: one costs 24 us on an H200."""
_STATM = Path("/proc/self/statm")


class MemoryGauge:
    """Reads what PyTorch has allocated on CUDA and what this process alone holds of the host's memory.

    Pages that are shared are left out: a data set that is mapped from a file is resident as far as it has been read, and
    would look like a leak. So is what is kept in order to return to earlier states, which grows until there are enough.
    """

    def __init__(self, kept: Callable[[], int]) -> None:
        self._kept = kept
        self._looked: int | None = None

    def figures(self, step: int) -> dict[str, float]:
        """Return the gauges where it is time to look at them."""
        if self._looked is not None and abs(step - self._looked) < EVERY:
            return {}
        self._looked = step
        found = {"memory_bytes": _allocated(), "host_memory_bytes": _private()}
        if found["host_memory_bytes"] is not None:
            found["host_memory_bytes"] = max(0, found["host_memory_bytes"] - self._kept())
        return {name: float(value) for name, value in found.items() if value is not None}


def _allocated() -> int | None:
    import torch

    if not torch.cuda.is_initialized():
        return None
    # Not `memory_allocated`: it puts all numbers into a flat mapping first, which is most of its cost.
    return int(torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])


def _private() -> int | None:
    """Return the resident memory that this process does not share with others; None where the system does not tell."""
    try:
        _, resident, shared, *_ = _STATM.read_text().split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

"""How much host memory snapshots may take: a share of what is free, for all processes of a machine together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from .control_groups import GROUPS, OWN, memory_groups, text_of

CGROUP = GROUPS
RANKS_ON_THIS_MACHINE = (
    "LOCAL_WORLD_SIZE",  # torchrun, accelerate
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "SLURM_STEP_TASKS_PER_NODE",  # of srun, where the job may have more
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
)
"""Where launchers say how many processes they have started on this machine, the one closest to a process first."""


def free_memory(cgroup: Path | None = None, own: Path = OWN) -> int:
    """Return the bytes that can still be allocated: what the machine has, or the least that a control group has left."""
    left = (max(0, most - used) for most, used in _groups(cgroup or CGROUP, own))
    return min([int(psutil.virtual_memory().available), *left])


def whole_memory(cgroup: Path | None = None, own: Path = OWN) -> int:
    """Return the bytes that there are, in use or not: the machine's, or the least that a control group may take."""
    return min([int(psutil.virtual_memory().total), *(most for most, _ in _groups(cgroup or CGROUP, own))])


def slots_within(nbytes: int, *, free: int, fraction: float, local_ranks: int = 1, most: int) -> int:
    """Return how many states of a size may be kept, at most `most`."""
    return min(most, int(free * fraction / max(1, local_ranks)) // max(1, nbytes))


def local_ranks(environ: Mapping[str, str]) -> int:
    """Return how many processes share this machine's memory, as the launcher says; one where none says anything."""
    for name in RANKS_ON_THIS_MACHINE:
        counts = [int(count) for each in environ.get(name, "").split(",") for count in _repeated(each)]
        if counts:
            node = environ.get("SLURM_NODEID", "")
            return max(1, counts[int(node)] if node.isdigit() and int(node) < len(counts) else max(counts))
    return 1


def _repeated(text: str) -> list[str]:
    """Return the counts of some nodes as Slurm writes them: `4(x2)` is 4 on each of two; nothing for what is no count."""
    found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", text)
    return [] if found is None else [found[1]] * int(found[2] or 1)


def _groups(groups: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Yield what each control group of this process may take and takes; one without a limit yields nothing."""
    for group in memory_groups(groups, own):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                yield most, max(0, now - _given_up(group / "memory.stat"))


def _given_up(path: Path) -> int:
    """Return what a group holds of files that were read and are not in use: the kernel gives it up when it is needed."""
    rows = (line.split() for line in text_of(path).splitlines())
    cached = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    return cached.get("total_inactive_file", cached.get("inactive_file", 0))  # version 1 counts groups below apart


def _number(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdigit() else None

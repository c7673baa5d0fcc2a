"""The check `host-memory-small`: memory of the machine for all processes that train and load data."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hardware.memory import GIB
from ..subject import Subject
from ..surroundings.here import gib, ranks, runs_here, workers
from ..tools import Tools

RANK_BYTES = 1.5 * GIB
"""What a process that has imported torch and transformers takes before it has loaded anything."""
WORKER_BYTES = 0.3 * GIB


class HostMemorySmall(Check):
    """The machine has memory for all processes that train and load data.

    Each rank imports torch anew, and each of its workers has a copy of what it touches of the data. The kernel ends one of them
    without a traceback: `Killed`, exit code 137, or `DataLoader worker exited unexpectedly`.
    """

    passes = (
        Example("torchrun --nproc_per_node 8 -m sft --dataloader_num_workers 4", "command", machine={"memory_bytes": 256 * GIB}),
        Example("python -m sft", "command", machine={"memory_bytes": GIB}),
    )  # fmt: skip
    fails = (
        Example("accelerate launch --num_processes 8 -m sft --dataloader_num_workers 8", "command", machine={"memory_bytes": 16 * GIB}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Count the processes, and compare."""
        found = workers(subject)
        if found is None or not runs_here(subject, tools):
            return
        count, where = found
        trainers = ranks(subject)
        least = trainers * (RANK_BYTES + count * WORKER_BYTES)
        free = tools.machine.memory_bytes
        if least <= free:
            return
        fitting = int((free / trainers - RANK_BYTES) / WORKER_BYTES)
        fix = f"Set dataloader_num_workers={max(0, fitting)}"
        yield self.warning(
            where,
            f"{trainers} training process{'es' if trainers > 1 else ''} with {count} workers each take {gib(least)} before any data are loaded, and {gib(free)} are free",
            fix if fitting >= 0 else f"{fix} and start fewer processes, or use a machine with more memory",
        )

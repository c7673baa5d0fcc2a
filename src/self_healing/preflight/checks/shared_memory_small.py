"""The check `shared-memory-small`: /dev/shm is large enough for the processes that load data."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..hardware.memory import GIB
from ..subject import Subject
from ..surroundings.here import gib, runs_here, workers
from ..tools import Tools

ENOUGH_BYTES = GIB


class SharedMemorySmall(Check):
    """Shared memory is large enough for the processes that load data.

    Workers hand batches over through /dev/shm, of which a container has 64 MiB unless it is told otherwise. It ends with
    `DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory`.
    """

    passes = (
        Example("python -m sft --dataloader_num_workers 4", "command", machine={"shm_bytes": 16 * GIB}),
        Example("python -m sft", "command", machine={"shm_bytes": 64 * 2**20}),
    )
    fails = (Example("python -m sft --dataloader_num_workers 4", "command", machine={"shm_bytes": 64 * 2**20}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare it with what a few batches take."""
        found = workers(subject)
        if found is None or not runs_here(subject, tools):
            return
        size = tools.machine.shm_bytes
        if size is not None and size < ENOUGH_BYTES:
            yield self.warning(
                found[1], f"{found[0]} workers hand batches over through /dev/shm, which has only {gib(size)}",
                "Start the container with --shm-size=8g (Kubernetes: an emptyDir of medium Memory at /dev/shm), or set dataloader_num_workers=0",
            )  # fmt: skip

"""The check `open-file-limit-low`: enough files may be open for workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.here import ranks, runs_here, workers
from ..tools import Tools

ENOUGH = 4096
MANY = 8
"""Processes from which on the usual limit of 1024 is reached."""


class OpenFileLimitLow(Check):
    """A process may have as many files open as many workers need.

    Each batch that a worker hands over is an open file for each of its tensors. With 1024 files it ends after a while with
    `OSError: [Errno 24] Too many open files` or `RuntimeError: received 0 items of ancdata`.
    """

    passes = (
        Example("python -m sft --dataloader_num_workers 16", "command", machine={"open_files": 65536}),
        Example("python -m sft --dataloader_num_workers 2", "command", machine={"open_files": 1024}),
    )
    fails = (Example("python -m sft --dataloader_num_workers 16", "command", machine={"open_files": 1024}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the limit with the number of processes."""
        found = workers(subject)
        if found is None or not runs_here(subject, tools):
            return
        count = found[0] * ranks(subject)
        limit = tools.machine.open_files
        if count >= MANY and limit < ENOUGH:
            yield self.warning(
                found[1], f"{count} workers load data, and a process may have only {limit} files open",
                "Run `ulimit -n 65536` in the same shell before the command (docker: --ulimit nofile=65536:65536)",
            )  # fmt: skip

"""The check `output-not-writable`: the output folder can be made and written to."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.here import nearest_there, output_folder, runs_here
from ..tools import Tools


class OutputNotWritable(Check):
    """The output folder can be made and written to.

    Training begins, and ends at the first save or at once with `PermissionError: [Errno 13] Permission denied`, `[Errno 30]
    Read-only file system` or `NotADirectoryError`.
    """

    passes = (Example("python -m sft --output_dir out", "command"),)
    fails = (
        Example("python -m sft --output_dir /data/out", "command", machine={"is_writable": False}),
        Example("output_dir: config.yaml/out\n", "config.yaml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the nearest folder that is there."""
        folder = output_folder(subject, tools)
        if folder is None or not runs_here(subject, tools):
            return
        path, where = folder
        there = nearest_there(path)
        if not there.is_dir():
            yield self.error(
                where, f"output_dir is {path}, but {there} is a file, not a folder", f"Set output_dir to a folder that can be made, such as {there.parent / 'out'}"
            )  # fmt: skip
        elif not tools.machine.is_writable(there):
            yield self.error(
                where, f"output_dir is {path}, and {there} cannot be written to by this user",
                f"Set output_dir to a folder of yours, or run: sudo chown -R $(id -u) {there}  (on a read-only file system only another folder helps: `findmnt -T {there}`)",
            )  # fmt: skip

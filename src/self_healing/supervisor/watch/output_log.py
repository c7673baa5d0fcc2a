"""What a command printed, kept on disk in two files of bounded size."""

from __future__ import annotations

import os
import threading
from pathlib import Path

MOST_BYTES = 64 * 2**20
"""What one of the two files holds at most."""


class OutputLog:
    """The output of one attempt; when the file is full it becomes `output.old.log`, and a new one begins."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        """Begin a log; a disk that refuses costs the log, never the run."""
        self.path = folder / "output.log"
        self.trouble = ""
        """Why nothing more is written, once something could not be."""
        self._older = folder / "output.old.log"
        self._most = most_bytes
        self._size = 0
        self._descriptor = -1
        self._guard = threading.Lock()  # two streams are read by two threads, and the file changes under them
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            self._give_up(error)

    def write(self, data: bytes) -> None:
        """Add what was printed."""
        with self._guard:
            if self._descriptor < 0:
                return
            try:
                self._write(data)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Write no more."""
        with self._guard:
            self._close()

    def _write(self, data: bytes) -> None:
        if self._size + len(data) > self._most and self._size:
            self._close()
            self.path.replace(self._older)
            self._open()
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self._size += len(data)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._size = 0

    def _give_up(self, error: OSError) -> None:
        self._close()
        self.trouble = f"{self.path}: {error.strerror or error}; the output is passed on but not kept"

"""The files that exist for an attempt only, and their end."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path

LONGEST_STEM = 150
"""Bytes of a name, so that what is put behind it still fits into what file systems take."""


class TemporaryFiles:
    """Everything that was written beside the user's files; known before it exists, so that nothing stays behind."""

    def __init__(self) -> None:
        self._files: list[Path] = []
        self._folders: list[Path] = []

    @property
    def paths(self) -> tuple[Path, ...]:
        """What is there now, or may be."""
        return (*self._files, *self._folders)

    def write(self, folder: Path, name: str, tail: str, data: bytes, mode: int) -> Path:
        """Write a new file under a name nobody has: `config.yaml` becomes `config<tail>_<random>.yaml`.

        Raises:
            OSError: the folder takes none, or the disk is full.

        """
        stem = os.fsencode(Path(name).stem)
        start = os.fsdecode(stem) if len(stem) <= LONGEST_STEM else stem[:LONGEST_STEM].decode("utf-8", "ignore")
        while True:
            path = folder / f"{start}{tail}_{secrets.token_hex(4)}{Path(name).suffix}"
            self._files.append(path)
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode | 0o600)
            except FileExistsError:
                self._files.remove(path)  # somebody else's
                continue
            except OSError:
                self._files.remove(path)
                raise
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
            except OSError:
                path.unlink(missing_ok=True)  # half a config is worse than none
                self._files.remove(path)
                raise
            return path

    def own_folder(self) -> Path:
        """Make a folder for files that cannot stand beside the user's.

        Raises:
            OSError: there is no place for temporary files.

        """
        folder = Path(tempfile.mkdtemp(prefix="heal-"))
        self._folders.append(folder)
        return folder

    def remove(self) -> tuple[str, ...]:
        """Remove everything; return a sentence for each thing that could not be, and try it again next time."""
        problems = []
        for paths, remove in ((self._files, Path.unlink), (self._folders, Path.rmdir)):
            for path in tuple(paths):
                try:
                    remove(path)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    problems.append(f"{path}: cannot be removed: {error.strerror}; remove it by hand")
                    continue
                paths.remove(path)
        return tuple(problems)

"""Open a recording as text, with one clear sentence for everything that can be wrong with it."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TextIO

from ..core.errors import InputError

EXPECTED = "expected a ledger.jsonl, a trainer_state.json, or a table of metrics as CSV or JSON lines"

_HEAD_BYTES = 2**20
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,18})", re.MULTILINE)
_ANNEX = re.compile(rb"^(?:\.\./)*(?:\.git)?/?annex/objects/")
UTF16 = (b"\xff\xfe", b"\xfe\xff")
GZIP = b"\x1f\x8b"
_MAGIC = {
    GZIP: "a gzip archive",
    b"PK\x03\x04": "a zip archive",
    b"\x80\x02": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"PAR1": "a Parquet file",
    b"\x89HDF": "an HDF5 file",
    b"SQLite format 3\0": "an SQLite database",
}


class NotFetched(InputError):
    """What was given only points to the content, which lies elsewhere: a Git LFS or git-annex pointer."""


def read_head(path: Path) -> bytes:
    """Return the beginning of a regular file that holds text; whatever else it is, is refused in one sentence."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise InputError(unreadable(path, error)) from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{os.fspath(path)!r}: is not a file name; {EXPECTED}") from error
    try:
        with os.fdopen(descriptor, "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            head = file.read(_HEAD_BYTES) if is_regular else b""
    except OSError as error:
        raise InputError(unreadable(path, error)) from error
    if not is_regular:
        raise InputError(f"{path}: is not a regular file; {EXPECTED}")
    refuse_other_content(path, head)
    return head


def unreadable(path: Path, error: OSError, expected: str = EXPECTED) -> str:
    """Return one sentence about a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return f"{path}: there is no such file; {expected}"
    return f"{path}: cannot be read ({error.strerror}); {expected}"


def refuse_other_content(path: Path | str, head: bytes, expected: str = EXPECTED, harmless: bytes = b"") -> None:
    """Raise where a beginning is no text, and say what it is; `harmless` lists control characters that text may hold here.

    Raises:
        NotFetched: it only points to the content, which lies elsewhere.
        InputError: it is empty, or something other than text.

    """
    if not head.strip(b"\0 \t\r\n\xef\xbb\xbf"):
        found = "is empty" if not head else "holds nothing but blanks"
        raise InputError(f"{path}: {found}; {expected}")
    if head.startswith(_LFS):
        size = _LFS_SIZE.search(head)
        missing = f" (the file itself has {int(size[1]):,} bytes)" if size else ""
        raise NotFetched(f"{path}: is a Git LFS pointer, not the file{missing}; fetch it with 'git lfs pull'")
    if _ANNEX.match(head):
        raise NotFetched(f"{path}: is a git-annex pointer, not the file; fetch it with 'git annex get'")
    if head.startswith(UTF16):
        return
    kind = next((words for magic, words in _MAGIC.items() if head.startswith(magic)), None)
    if kind is None and _looks_binary(head, harmless):
        kind = "a binary file"
    if kind is not None:
        raise InputError(f"{path}: is {kind}; {expected}")


def _looks_binary(head: bytes, harmless: bytes) -> bool:
    """Say whether too much of the beginning is no text; a crash may leave zeros in a text file, but few."""
    sample = (head.translate(None, harmless) if harmless else head.lstrip(b"\0"))[:4096]
    odd = sum(0 < byte < 9 or 13 < byte < 32 for byte in sample)
    few = 8 if harmless else 0
    return odd > max(few, 0.05 * len(sample)) or sample.count(0) > 0.3 * len(sample)


def open_text(path: Path, head: bytes = b"") -> TextIO:
    """Open a file that `read_head` has accepted: UTF-8, or UTF-16 with its mark; bytes that are neither are replaced."""
    encoding = "utf-16" if head.startswith(UTF16) else "utf-8-sig"
    try:
        return path.open(encoding=encoding, errors="replace", newline="")
    except OSError as error:
        raise InputError(unreadable(path, error)) from error


def text_of(head: bytes) -> str:
    """Return the beginning of a file as text, without marks and leading blanks."""
    encoding = "utf-16" if head.startswith(UTF16) else "utf-8-sig"
    return head.decode(encoding, errors="replace").lstrip("\0 \t\r\n\ufeff")


def quoted(text: str, longest: int = 60) -> str:
    """Return the beginning of a line as it may be shown in a message."""
    line = text.split("\n", 1)[0].strip()
    return ascii(line[:longest] + ("..." if len(line) > longest else ""))

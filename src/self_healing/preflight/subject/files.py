"""Files that somebody else has written: opened without waiting, read up to a limit, with an error a user can follow."""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
import tokenize
from pathlib import Path
from typing import Any

from ...core.errors import InputError

_ENCODINGS = frozenset(
    "utf-8 ascii iso8859-1 iso8859-2 iso8859-5 iso8859-9 iso8859-15 cp1250 cp1251 cp1252 gbk gb18030 big5 shift_jis "
    "euc_jp euc_kr koi8-r".split()
)
"""What a script may declare; some others of Python's take very long, or are none of text."""
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def read_bytes(path: Path, named: str, what: str, largest: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        InputError: it is not there, cannot be read, is none, or is too large to be `what`.

    """
    try:
        if not path.exists():
            raise InputError(f"{named}: there is no such file")
        if not path.is_file():
            raise InputError(f"{named}: is no regular file")
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):  # it was one a moment ago
                raise InputError(f"{named}: is no regular file")
            raw = file.read(largest + 1) or b""
    except OSError as error:
        raise InputError(f"{named}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{named!r}: is no name of a file") from error  # a null byte in it
    if len(raw) > largest:
        raise InputError(f"{named}: has more than {largest:,} bytes, so it is hardly {what}")
    return raw


def json_object(path: Path, largest: int = 16 << 20) -> dict[str, Any] | None:
    """Return the JSON object in a file; None where there is none, or it is larger than such files are."""
    try:
        if not path.is_file() or path.stat().st_size > largest:
            return None
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def text_of_config(raw: bytes, named: str) -> str:
    """Return the text of a file that has to be UTF-8.

    Raises:
        InputError: it is something else.

    """
    text = _decoded(raw, "utf-8", named)
    if "\0" in text:
        raise InputError(
            f"{named}:{text.count(chr(10), 0, text.index(chr(0))) + 1}: holds null bytes, so it is no text"
        )
    return text


def text_of_script(raw: bytes, named: str) -> str:
    r"""Return the text of a Python script in the encoding that it declares, its lines ended by `\n` alone.

    Raises:
        InputError: it is not in the encoding that it declares, or declares an unusual one.

    """
    _refuse_other_marks(raw, named)
    try:
        declared, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        encoding = codecs.lookup(declared.removesuffix("-sig")).name
    except (SyntaxError, LookupError) as error:
        raise InputError(f"{named}:1: is not Python: {error}") from error
    if encoding not in _ENCODINGS:
        raise InputError(f"{named}:1: declares the encoding {encoding}, which is not read here; save it as UTF-8")
    return _decoded(raw, encoding, named).replace("\r\n", "\n").replace("\r", "\n")


def _decoded(raw: bytes, encoding: str, named: str) -> str:
    _refuse_other_marks(raw, named)
    try:
        return raw.removeprefix(codecs.BOM_UTF8).decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{named}:{line}: is not {encoding.upper()} text") from None


def _refuse_other_marks(raw: bytes, named: str) -> None:
    if raw.startswith(_OTHER_MARKS):
        raise InputError(f"{named}: is UTF-16 or UTF-32 text; save it as UTF-8")

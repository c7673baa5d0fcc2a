"""What a ledger file looks like: one entry a line, how it is written, opened and read again.

Keys in order: `v` (schema), `seq`, `attempt`, `time`, `step`, `rank`, `kind`, `name`, `body`. Lines are strict
JSON in ASCII. A float that JSON has no word for is written as `{"$float": "NaN"}` and read back as that float;
a body that happens to look like this gets one more `$`. Tuples become lists, keys become text.
"""

from __future__ import annotations

import errno
import json
import math
import numbers
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NoReturn

from .errors import LedgerError
from .secrets import Masker

SCHEMA = 1
"""The schema written; this one and the one before are read, a newer one is refused by name."""
KINDS = ("config", "signal", "incident", "diagnosis", "plan", "outcome", "verdict", "note")

_LONGEST_LINE = 4 * 2**20
_START = b'{"v":'
_HEAD = re.compile(rb'\{"v":\s?(\d{1,9}),\s?"seq":\s?(\d{1,18}),\s?"attempt":\s?(\d{1,9}),')
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})
_ODD_VALUES = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What an object that does not belong into a record may raise while it is turned into text."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a ledger."""

    v: int
    seq: int
    """Counts up over all attempts; -1 for an entry that came after the end and is recorded nowhere."""
    attempt: int
    """Which start of the run wrote it, from 1."""
    time: float
    step: int
    rank: int
    kind: str
    name: str
    body: Mapping[str, object]


@dataclass(slots=True)
class LedgerReading:
    """What a ledger file held, and what is known to be missing from it."""

    entries: list[Entry] = field(default_factory=list)
    torn: int = 0
    """Lines that are no entries: cut off by a crash or damaged."""
    thinned: bool = False
    """Some signals were left out on purpose, so a replay is approximate."""
    lost: int = 0
    """Lines that could not be kept while the disk refused."""
    attempts: list[int] = field(default_factory=list)
    """The starts of the run that wrote here, in the order of the file."""
    out_of_order: int = 0
    """Entries whose `seq` is not larger than the one before."""


def read_ledger(path: str | os.PathLike[str]) -> LedgerReading:
    """Read a whole ledger into memory.

    Raises:
        LedgerError: the file cannot be opened, is no ledger, or has a schema this version does not read.

    """
    reading = LedgerReading()
    reading.entries.extend(iter_ledger(path, reading))
    return reading


def iter_ledger(path: str | os.PathLike[str], reading: LedgerReading | None = None) -> Iterator[Entry]:
    """Yield the entries of a ledger in constant memory, noting what is amiss in `reading` where one is given."""
    facts = LedgerReading() if reading is None else reading
    path = Path(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror}") from error
    last = 0
    with file:
        _refuse_other_files(path, file)
        for line in _lines_of(file):
            entry = decode(line, path)
            if entry is None:
                facts.torn += bool(line.strip())
                continue
            facts.out_of_order += entry.seq <= last
            last = entry.seq
            if entry.attempt not in facts.attempts[-1:]:
                facts.attempts.append(entry.attempt)
            if entry.kind == "note" and entry.name == "signals-thinned":
                facts.thinned = True
            if entry.kind == "note" and entry.name == "lines-lost":
                lines = entry.body.get("lines")
                facts.lost += lines if isinstance(lines, int) else 0
            yield entry


def encode(entry: Entry, masker: Masker) -> bytes:
    """Return an entry as its line, secrets masked; what cannot be written is named in the body's place."""
    try:
        line = _line(entry, masker.value(_plain(entry.body)))
        if len(line) <= _LONGEST_LINE:
            return line
        problem = f"{len(line)} bytes are more than a line may have"
    except _ODD_VALUES as error:
        problem = f"{type(error).__name__}: {error}"[:1000]
    return _line(entry, {"$unwritable": masker.text(problem)})


def _line(entry: Entry, body: object) -> bytes:
    """Return the line of an entry with a body that is plain data."""
    head = {
        "v": entry.v,
        "seq": entry.seq,
        "attempt": entry.attempt,
        "time": _plain(entry.time),
        "step": _plain(entry.step),
        "rank": _plain(entry.rank),
        "kind": entry.kind,
        "name": entry.name,
        "body": body,
    }
    return _to_json(head).encode("ascii") + b"\n"


_to_json = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def _plain(value: object) -> object:  # one return per type of data
    """Return a value as data that strict JSON can hold."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": _spelling(value)}
    if isinstance(value, Mapping):
        items = {key if type(key) is str else str(key): _plain(item) for key, item in value.items()}
        only = next(iter(items)) if len(items) == 1 else ""
        return {"$" + only: items[only]} if only.lstrip("$") == "float" and only != "float" else items
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    # Narrow floats of array libraries come here; other objects are represented by what they print.
    return _plain(float(value)) if isinstance(value, numbers.Real) else str(value)


def _spelling(value: float) -> str:
    """Return the word for a float that is not finite."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def decode(line: bytes, path: Path) -> Entry | None:
    """Return the entry of a line, or None for a line that is torn or damaged.

    Raises:
        LedgerError: the line has a schema that this version does not read.

    """
    try:
        raw: object = _from_json(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if isinstance(raw, dict) and type(raw.get("v")) is int and not SCHEMA - 1 <= raw["v"] <= SCHEMA:
        raise LedgerError(
            f"{path}: written with ledger schema {raw['v']}, this version reads {SCHEMA - 1} and {SCHEMA}; "
            "use the version of self_healing that wrote it, or a newer one"
        )
    match raw:
        case {
            "v": int(v),
            "seq": int(seq),
            "attempt": int(attempt),
            "time": float(time) | int(time),
            "step": int(step),
            "rank": int(rank),
            "kind": str(kind),
            "name": str(name),
            "body": dict(body),
        }:
            return Entry(v, seq, attempt, float(time), step, rank, kind, name, body)
    return None


def _unwrapped(items: dict[str, object]) -> object:
    """Turn `{"$float": "NaN"}` back into the float."""
    if len(items) != 1:
        return items
    ((key, value),) = items.items()
    if key == "$float" and isinstance(value, str):
        return _FLOATS.get(value, items)
    return {key[1:]: value} if key.startswith("$$") and key.lstrip("$") == "float" else items


def _not_strict(word: str) -> NoReturn:
    """Refuse the words that are JSON only to Python."""
    raise ValueError(word)


_from_json = json.JSONDecoder(object_hook=_unwrapped, parse_constant=_not_strict).decode


def _lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines without ever holding more than one, of a line without end only the beginning."""
    file.seek(0)
    while line := file.readline(_LONGEST_LINE + 1):
        yield line
        while line and not line.endswith(b"\n"):
            line = file.readline(_LONGEST_LINE + 1)


def _refuse_other_files(path: Path, file: BinaryIO) -> None:
    """Refuse a file that was never a ledger; a ledger may be cut off after any byte, or begin with zeros."""
    file.seek(0)
    head = file.read(65536)
    if any(line.startswith(_START) for line in head.split(b"\n")) or _START.startswith(head.strip(b"\0\r\n\t ")):
        return
    raise LedgerError(
        f"{path}: is not a ledger, or one that is damaged beyond use: no line begins with {_START.decode()}; move the file "
        "away (a run that goes on then knows nothing of its earlier troubles), or train into another output_dir"
    )


def open_for_appending(path: Path) -> tuple[int, int, int, bool]:
    """Open or create a ledger; return its descriptor, last `seq`, last attempt, and whether its last line is torn.

    Raises:
        LedgerError: the file cannot be opened, is a symbolic link, no ledger, or of a newer schema.

    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        reason = "is a symbolic link, which is not followed" if error.errno == errno.ELOOP else error.strerror
        raise LedgerError(f"{path}: the ledger cannot be opened: {reason}") from error
    is_good = False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LedgerError(f"{path}: the ledger cannot be opened: it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            found = _last_numbers(path, file)
        is_good = True
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read: {error.strerror}") from error
    finally:
        if not is_good:
            os.close(descriptor)
    return (descriptor, *found)


def _last_numbers(path: Path, file: BinaryIO) -> tuple[int, int, bool]:
    """Return the highest `seq` and attempt, and whether the last line has no end; only the heads are looked at."""
    _refuse_other_files(path, file)
    seq = attempt = 0
    line = b"\n"
    for line in _lines_of(file):
        # The head of a torn line counts too: its number has been used.
        if head := _HEAD.match(line):
            if int(head[1]) != SCHEMA:
                decode(line, path)
            seq, attempt = max(seq, int(head[2])), max(attempt, int(head[3]))
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 1))
    return seq, attempt, file.read(1) not in (b"", b"\n")

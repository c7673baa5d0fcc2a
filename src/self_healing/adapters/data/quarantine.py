"""The list of records that are left out: `healing/quarantine.jsonl`, one JSON object a line.

A line names a record by its place and by a hash of its content, or, where the content could not be read, by its place
and the content of the record that was used instead. It holds no time, so that two runs that do the same write the same
file. To give a record another chance, delete its line.

The list is that of one run: its later attempts honour it, and another run in the same folder sets it aside.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import xxhash

from ...core.errors import SelfHealingError
from ...core.run_directory import healing_folder
from ...core.secrets import Masker, strip_control
from ..exceptions import text_of

logger = logging.getLogger("self_healing.data")

SCHEMA = 1
MOST_MESSAGE = 500
"""Characters of an error's message that a line keeps."""
MOST_NAMED = 20
"""Records that an error message lists."""


class TooManyBadRecords(SelfHealingError):
    """So many records had to be left out that the dataset or its code is wrong, not the records."""

    def __init__(self, message: str, records: Iterable[BadRecord] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)
        """Those that were found and are not on the list yet."""


class NoUsableRecord(SelfHealingError):
    """No record is left that could take the place of a bad one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """One line of the list."""

    index: int
    """Its place in the dataset; in a stream, how many records came before it."""
    hash: str
    has_content: bool
    """Whether the hash is that of the content; else it is that of the place."""
    dataset: str
    """Fingerprint of the dataset: kind, size, columns."""
    where: str
    """`dataset`, `collator`, `stream` or `model`."""
    exception: str
    message: str
    replaced_by: int | None = None
    """The place of the record that is used instead."""
    witness: str = ""
    """Hash of that record's content, where this one has none: it says whether the data are still the same."""

    def sentence(self) -> str:
        """Say what happened to it."""
        instead = "" if self.replaced_by is None else f"; record {self.replaced_by} takes its place"
        return f"record {self.index} raised {self.exception} in the {self.where} ({self.message}){instead}"


_FIELDS = frozenset(field.name for field in fields(BadRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many records may be left out; both numbers must be exceeded before the run is stopped."""

    fraction: float = 0.001
    records: int = 10

    def allows(self, count: int, total: int) -> bool:
        """Say whether that many of so many records may be left out."""
        return count <= self.records or count <= self.fraction * total


def bad_record(
    *, index: int, record: Any, dataset: str, where: str, error: BaseException, has_content: bool = True
) -> BadRecord:
    """Describe a record that failed; without content where it could not be read."""
    message = strip_control(Masker(os.environ).text(" ".join(text_of(error).split())))[:MOST_MESSAGE]
    return BadRecord(
        index=index,
        hash=content_hash(record) if has_content else content_hash([dataset, index]),
        has_content=has_content,
        dataset=dataset,
        where=where,
        exception=type(error).__name__,
        message=message,
    )


def content_hash(record: Any) -> str:
    """Return a hash of a record's values, the same in every process."""
    digest = xxhash.xxh3_64()
    _feed(digest, record)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{key}=".encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        if all(isinstance(item, int | float | str) for item in value):
            digest.update(repr(list(value)).encode())
        else:
            digest.update(f"[{len(value)}]".encode())
            for item in value:
                _feed(digest, item)
    elif isinstance(value, bytes | bytearray):
        digest.update(f"bytes[{len(value)}]".encode())
        digest.update(value)
    elif value is None or isinstance(value, int | float | str):
        digest.update(repr(value).encode())
    else:
        _feed_object(digest, value)


def _feed_object(digest: Any, value: Any) -> None:
    """Take tensors, arrays and images by their bytes; of anything else only the type is known to be stable."""
    digest.update(f"{type(value).__qualname__}{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}".encode())
    if hasattr(value, "detach"):  # a tensor; numpy knows no bfloat16, so it is read as bytes
        import torch

        value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if hasattr(value, "tobytes"):
        digest.update(value.tobytes())


def fingerprint(dataset: Any) -> str:
    """Return what tells one dataset from another at no cost: its kind, size and columns."""
    size: object = None
    with suppress(TypeError):
        size = len(dataset)
    columns = getattr(dataset, "column_names", None)
    return content_hash([type(dataset).__qualname__, str(size), str(columns)])


class Quarantine:
    """The list of one run, read from the disk when it is opened and appended to by this process alone."""

    def __init__(self, run_dir: str | os.PathLike[str], rank: int = 0) -> None:
        folder = healing_folder(run_dir)
        self.path = folder / ("quarantine.jsonl" if rank == 0 else f"quarantine.rank{rank}.jsonl")
        self.records: dict[int, BadRecord] = {}
        """By place. What another rank found is left out here too, from the next start on."""
        for path in sorted(folder.glob("quarantine*.jsonl")) if folder.is_dir() else []:
            self.records.update({record.index: record for record in read_list(path)})
        self.inherited = frozenset(self.records)
        """Places that were on the list before this attempt."""

    def set_aside(self, world_size: int = 1) -> list[Path]:
        """Begin an empty list, because this is another run; return where the lines of the earlier one are now.

        Every process moves its own file, and the first one those that no process of this run would write to.
        """
        self.records, self.inherited = {}, frozenset()
        mine = [self.path]
        if self.path.name == "quarantine.jsonl":
            own = {f"quarantine.rank{rank}.jsonl" for rank in range(1, world_size)}
            mine += [path for path in self.path.parent.glob("quarantine.rank*.jsonl") if path.name not in own]
        moved = []
        for path in mine:
            if path.is_file():
                number = next(n for n in itertools.count(1) if not _earlier(path, n).exists())
                try:
                    moved.append(path.rename(_earlier(path, number)))
                except OSError as error:  # its lines are passed over in this attempt all the same
                    logger.warning("%s: the list of an earlier run could not be set aside: %s", path, error)
        return moved

    def add(self, record: BadRecord) -> bool:
        """Put a record on the list, on the disk too; say whether it was new."""
        known = self.records.get(record.index)
        if known is not None and (known.hash, known.dataset) == (record.hash, record.dataset):
            return False
        self.records[record.index] = record
        line = json.dumps({"v": SCHEMA, **asdict(record)}) + "\n"
        try:
            self._append(line.encode())
        except OSError as error:  # the run goes on and finds the record again when it is resumed
            logger.warning("%s: the list of bad records could not be written: %s", self.path, error)
        return True

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # the last write was cut off
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)  # rare, and a kill right after it must not lose the record
        finally:
            os.close(descriptor)

    def check(self, limit: Limit, total: int, dataset: str) -> None:
        """Stop the run where too many records of a dataset are on the list.

        Raises:
            TooManyBadRecords: both limits are exceeded; the text says which records, why, and what to do.

        """
        bad = [record for record in self.records.values() if record.dataset == dataset]
        if not limit.allows(len(bad), total):
            raise TooManyBadRecords(too_many(bad, total, limit, self.path))


def _earlier(path: Path, number: int) -> Path:
    return path.with_name(f"earlier_{number}_{path.name}")


def too_many(bad: Iterable[BadRecord], total: int, limit: Limit, path: Path | None) -> str:
    """Return the message for a dataset with too many bad records."""
    listed = sorted(bad, key=lambda record: record.index)
    indices = ", ".join(str(record.index) for record in listed[:MOST_NAMED]) + (
        ", ..." if len(listed) > MOST_NAMED else ""
    )
    kinds = ", ".join(dict.fromkeys(f"{record.exception} in the {record.where}" for record in listed))
    share = f"{100 * len(listed) / total:.2g} %" if total else "too many"
    where = "" if path is None else f" They are listed in {path}."
    return (
        f"{len(listed)} of {total} records ({share}) had to be left out, more than {limit.records} and more than "
        f"{100 * limit.fraction:g} % ({kinds}): records {indices}. One of them said: {listed[-1].message}.{where} "
        "Repair or drop these records, or correct the dataset's code, then delete the list and start again; raise "
        "quarantine_records and quarantine_fraction only if so much bad data is expected."
    )


def read_list(path: Path) -> list[BadRecord]:
    """Read a list; lines that are torn or of a newer version are passed over with a warning."""
    found = []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        logger.warning("%s: the list of bad records cannot be read: %s", path, error)
        return []
    for number, line in enumerate(lines, 1):
        record = _from_line(line)
        if record is not None:
            found.append(record)
        elif line.strip():
            logger.warning("%s:%d: is not a line of this version and is passed over", path, number)
    return found


def _from_line(line: bytes) -> BadRecord | None:
    try:
        raw = json.loads(line)
        if not isinstance(raw, dict) or raw.pop("v", None) != SCHEMA:
            return None
        record = BadRecord(**{name: value for name, value in raw.items() if name in _FIELDS})
    except (ValueError, TypeError, RecursionError):  # thousands of nested brackets
        return None
    replaced = record.replaced_by
    is_whole = (
        type(record.index) is int
        and record.index >= 0
        and isinstance(record.hash, str)
        and isinstance(record.dataset, str)
    )
    is_whole = is_whole and isinstance(record.witness, str)
    return record if is_whole and (replaced is None or type(replaced) is int) else None

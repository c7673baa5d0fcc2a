"""The format `tensorboard`: event files, read as they lie on disk; neither TensorFlow nor TensorBoard is needed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

from ...core.errors import InputError
from ...core.signal import Metrics
from ..names import RunCounter, canonical
from ..protobuf import Damaged, Field, fields
from ..source import Candidate, InputFormat, Item, Reading, Seen

LARGEST_RECORD = 64 * 2**20
"""An image or a graph may be large; a length beyond this is damage."""
_NAME = re.compile(r"events\.out\.tfevents\.")
_CRC = struct.Struct("<QI")
_FLOAT, _DOUBLE = 1, 2


class Tensorboard(InputFormat):
    """A TensorBoard event file: its scalars, gathered by step."""

    order = 8

    def knows(self, candidate: Candidate) -> bool:
        """Take a file that is called so, or whose first record is that of an event file."""
        if candidate.is_folder or candidate.is_stdin:
            return False
        is_one = b"brain.Event:" in candidate.head[:64]
        return is_one or (_NAME.search(candidate.path.name) is not None and candidate.head[8:12] != b"")

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield one observation a step."""
        counter, step, values, known = RunCounter(), None, {}, 0
        with candidate.path.open("rb") as file:
            for record in _records(file, reading, candidate.name):
                try:
                    at, scalars = _event(record)
                except Damaged:
                    reading.damage.append(f"{candidate.name}: a record is damaged")
                    continue
                if not scalars:
                    continue
                known += 1
                if at != step and step is not None and values:
                    yield _seen(counter, step, values)
                    values = {}
                step = at
                values.update(scalars)
        if step is not None and values:
            yield _seen(counter, step, values)
        if not known:
            raise InputError(f"{candidate.name}: is an event file without scalars; expected metrics such as train/loss")


def _seen(counter: RunCounter, step: int, values: dict[str, float]) -> Seen:
    return Seen(counter.count(step, values), Metrics(step=step, values=dict(values)))


def _records(file: BinaryIO, reading: Reading, name: str) -> Iterator[bytes]:
    """Yield the records: a length with its checksum, the content with its own."""
    while header := file.read(12):
        if len(header) < 12:
            break
        size, check = _CRC.unpack(header)
        if size > LARGEST_RECORD or _masked_crc(header[:8]) != check:
            reading.damage.append(f"{name}: is damaged from byte {file.tell() - 12:,} on")
            return
        record = file.read(size)
        if len(record) < size or len(file.read(4)) < 4:
            break
        yield record
    else:
        return
    reading.damage.append(f"{name}: ends in the middle of a record")


def _event(record: bytes) -> tuple[int, dict[str, float]]:
    """Return the step of an event, and its scalars under canonical names."""
    step, scalars = 0, {}
    for field in fields(record):
        if field.number == 2:
            step = field.whole()
        elif field.number == 5:
            for value in field.message():
                found = _scalar(value)
                if found is not None:
                    scalars[canonical(found[0])] = found[1]
    return max(0, step), scalars


def _scalar(value: Field) -> tuple[str, float] | None:
    tag, number = "", None
    for field in value.message():
        if field.number == 1:
            tag = field.text()
        elif field.number == 2:
            number = field.real()
        elif field.number == 8:
            number = _tensor(field)
    return (tag, number) if tag and number is not None else None


def _tensor(tensor: Field) -> float | None:
    """Return the number of a tensor that holds a single one; newer writers wrap scalars so."""
    kind, number = 0, None
    for field in tensor.message():
        if field.number == 1:
            kind = field.whole()
        elif (field.number, kind) in ((5, _FLOAT), (6, _DOUBLE), (4, _FLOAT), (4, _DOUBLE)):
            number = field.real()
    return number


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    made = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
        made.append(crc)
    return tuple(made)


_TABLE = _table()
"""CRC-32C, with which the lengths of records are checked."""

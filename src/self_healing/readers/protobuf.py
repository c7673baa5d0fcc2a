"""Read protocol buffers without their definitions: numbered fields, as they stand in the bytes.

Event files and wandb's record files hold protocol buffers. A handful of their fields is wanted, and neither library has to be
there to read what it once wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class Damaged(ValueError):
    """The bytes are no message."""


class Field(NamedTuple):
    """One field of a message."""

    number: int
    value: int | bytes
    """A whole number, or the bytes of a text, a message or a number of fixed size."""

    def message(self) -> Iterator[Field]:
        """Yield the fields of the message inside; nothing where the field is a number."""
        return fields(self.value) if isinstance(self.value, bytes) else iter(())

    def text(self) -> str:
        """Return the field as text; bytes that are no UTF-8 are replaced."""
        return self.value.decode("utf-8", "replace") if isinstance(self.value, bytes) else str(self.value)

    def whole(self) -> int:
        """Return the field as a signed whole number; 0 where it is none."""
        if not isinstance(self.value, int):
            return 0
        return self.value - 2**64 if self.value >= 2**63 else self.value

    def real(self) -> float | None:
        """Return the field as a number of fixed size; None where it is none."""
        if not isinstance(self.value, bytes) or len(self.value) not in (4, 8):
            return None
        return float(struct.unpack("<f" if len(self.value) == 4 else "<d", self.value)[0])


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        Damaged: the bytes are no message, or end in the middle of one.

    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield Field(key >> 3, value)
            continue
        size = 8 if kind == _FIXED64 else 4 if kind == _FIXED32 else -1
        if kind == _BYTES:
            size, place = _varint(data, place)
        if size < 0 or place + size > len(data):
            raise Damaged("a field is longer than its message")
        yield Field(key >> 3, data[place : place + size])
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise Damaged("a number does not end")

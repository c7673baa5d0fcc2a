"""The format `wandb-file`: the record file `run-*.wandb` of a run, offline or not yet synchronised.

The file is a log in the manner of LevelDB: blocks of 32 KiB, in them fragments with a checksum, a length and a kind; put
together they are protocol buffers. Of those the history (metrics as JSON) and the output of the program are wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from ...core.errors import InputError
from ...core.signal import Metrics
from ..log_text import LONGEST_BYTES, Block
from ..metrics_table import parsed
from ..names import RunCounter, layout_of, metrics_of, step_number
from ..protobuf import Damaged, Field, fields
from ..source import Candidate, InputFormat, Item, Reading, Seen

BLOCK = 32 * 2**10
LARGEST_RECORD = 64 * 2**20
_MAGIC = b":W&B"
_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _OUTPUT, _RAW_OUTPUT = 2, 4, 13
_LINES_AT_ONCE = 200


class WandbFile(InputFormat):
    """What wandb keeps of a run on disk: its metrics and what it printed."""

    order = 7

    def knows(self, candidate: Candidate) -> bool:
        """Take a file that begins as wandb's do."""
        return not candidate.is_stdin and candidate.head.startswith(_MAGIC)

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield metrics as they were logged, and the printed lines between them."""
        counter, printed, known = RunCounter(), _Printed(), 0
        with candidate.path.open("rb") as file:
            for record in _records(file, reading, candidate.name):
                try:
                    found = list(fields(record))
                    for field in found:
                        if field.number == _HISTORY:
                            seen = _observed(field, counter)
                            known += seen is not None
                            if seen is not None:
                                yield seen
                        elif field.number in (_OUTPUT, _RAW_OUTPUT):
                            printed.take(field)
                except Damaged:
                    reading.damage.append(f"{candidate.name}: a record is damaged")
                if printed.is_full:
                    yield printed.block()
        if printed.lines or printed.waiting:
            yield printed.block(last=True)
        if not known and not printed.number:
            raise InputError(f"{candidate.name}: is a wandb file without metrics or output")


class _Printed:
    """Puts what a program printed together again, as lines."""

    def __init__(self) -> None:
        self.number = 0
        self.lines: list[str] = []
        self.waiting = ""

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= _LINES_AT_ONCE

    def take(self, field: Field) -> None:
        text = next((inner.text() for inner in field.message() if inner.number == 3), "")
        *whole, waiting = (self.waiting + text).split("\n")
        self.waiting = waiting[-LONGEST_BYTES:]
        self.lines += [line[-LONGEST_BYTES:] for line in whole]

    def block(self, *, last: bool = False) -> Block:
        lines = [*self.lines, *([self.waiting] if last and self.waiting else [])]
        first = self.number + 1
        self.number += len(lines)
        self.lines = []
        return Block(range(first, first + len(lines)), "\n".join(line.rpartition("\r")[2] for line in lines))


def _observed(history: Field, counter: RunCounter) -> Seen | None:
    row: dict[str, object] = {}
    own_step = None
    for field in history.message():
        if field.number == 2:
            own_step = next((inner.whole() for inner in field.message() if inner.number == 1), 0)
        if field.number != 1:
            continue
        name, value = "", ""
        for inner in field.message():
            if inner.number in (1, 2):
                name = f"{name}.{inner.text()}" if name else inner.text()
            elif inner.number == 16:
                value = inner.text()
        decoded = parsed(f'{{"value": {value}}}') if len(value) <= 64 else None
        if name and decoded is not None:
            row[name] = decoded["value"]
    layout = layout_of(tuple(row))
    values = metrics_of(row, layout)
    if not values:
        return None
    step = step_number(row[layout.step]) if layout.step is not None else None
    step = own_step if step is None else step
    signal = Metrics(step=step or 0, values=values)
    return Seen(counter.count(signal.step, values), signal)


def _records(file: BinaryIO, reading: Reading, name: str) -> Iterator[bytes]:
    place = len(file.read(7))  # the file's own header
    pieces: list[bytes] = []
    while True:
        left = BLOCK - place % BLOCK
        if left < _HEADER.size:  # what is left of a block is padding
            place += len(file.read(left))
            continue
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            break
        _, size, kind = _HEADER.unpack(header)
        content = file.read(size)
        place += _HEADER.size + len(content)
        if len(content) < size or size > left - _HEADER.size or not _WHOLE <= kind <= _LAST:
            reading.damage.append(f"{name}: is damaged or cut off near byte {place:,}")
            break
        if kind in (_WHOLE, _FIRST):
            pieces = []
        pieces.append(content)
        if sum(map(len, pieces)) > LARGEST_RECORD:
            pieces = []
        elif kind in (_WHOLE, _LAST):
            yield b"".join(pieces)
            pieces = []

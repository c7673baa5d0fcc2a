"""The format `spooled`: structured files that come packed or through a pipe, put aside before they are read."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...core.errors import InputError
from ..log_text import LogFacts, open_log, unpacked_chunks
from ..source import Candidate, InputFormat, Item, Reading, open_source
from ..text_file import GZIP
from .csv_table import CsvTable
from .json_lines import JsonLines
from .ledger import Ledger
from .torchrun_error import TorchrunError
from .trainer_state import TrainerState

LARGEST_BYTES = 512 * 2**20
_STRUCTURED = (Ledger(), JsonLines(), TorchrunError(), TrainerState(), CsvTable())


class Spooled(InputFormat):
    """A table, a state or a ledger as gzip or on standard input; logs are read as they come."""

    order = 5

    def knows(self, candidate: Candidate) -> bool:
        """Take what is packed or piped and is, inside, a format that must be read as a file."""
        if candidate.is_folder or not (candidate.is_stdin or candidate.head.startswith(GZIP)):
            return False
        inside = replace(candidate, head=_unpacked(candidate.head), is_stdin=False)
        return any(known.knows(inside) for known in _STRUCTURED)

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Put the content into a file of its own for as long as it is read."""
        suffix = Path(candidate.path.name.removesuffix(".gz")).suffix
        with tempfile.TemporaryDirectory(prefix="heal-") as folder:
            copy = Path(folder) / f"input{suffix[:10]}"
            facts = LogFacts()
            with open_log(candidate.name) as source, copy.open("wb") as target:
                for chunk in unpacked_chunks(source, facts, candidate.name):
                    target.write(chunk)
                    if target.tell() > LARGEST_BYTES:
                        raise InputError(f"{candidate.name}: holds more than {LARGEST_BYTES:,} bytes; unpack it first")
            if facts.damage:
                reading.damage.append(f"{candidate.name}: {facts.damage}")
            inner = open_source(copy)
            reading.format = inner.format.name()
            try:
                yield from inner.items(reading)
                reading.cut_off = reading.cut_off.replace(str(copy), candidate.name)
            except InputError as error:
                error.args = (str(error).replace(str(copy), candidate.name),)
                raise


def _unpacked(head: bytes) -> bytes:
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(31).decompress(head, 2**16)
    except zlib.error:
        return b""

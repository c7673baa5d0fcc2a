"""The format `ledger`: what a guarded run wrote down itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...core.ledger import LedgerReading
from ..ledger_file import read_entries
from ..source import Candidate, InputFormat, Item, Reading
from ..text_file import text_of
from .json_lines import is_text

_LEDGER = re.compile(r'\{"v":\s?\d{1,9},\s?"seq":\s?\d')


class Ledger(InputFormat):
    """Our own `healing/ledger.jsonl`."""

    order = 10

    def knows(self, candidate: Candidate) -> bool:
        """Take a file that begins as the ledger does."""
        return not candidate.is_folder and is_text(candidate) and _LEDGER.match(text_of(candidate.head)) is not None

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its entries."""
        facts = LedgerReading()
        yield from read_entries(candidate.path, facts)
        if facts.torn:
            reading.damage.append(f"{candidate.name}: {facts.torn} lines are torn")
        if facts.lost:
            reading.damage.append(f"{candidate.name}: {facts.lost} lines were lost while the disk refused them")

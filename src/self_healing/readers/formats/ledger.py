"""The format `ledger`: what a guarded run wrote down itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ...core.ledger import LedgerReading
from ...core.run_directory import ledger_path, supervisor_ledger_path
from ..ledger_file import read_entries
from ..source import Candidate, InputFormat, Item, Reading
from ..text_file import text_of
from .json_lines import is_text

_LEDGER = re.compile(r'\{"v":\s?\d{1,9},\s?"seq":\s?\d')


class Ledger(InputFormat):
    """Our own `healing/ledger.jsonl`, with what a supervisor wrote beside it."""

    order = 10

    def knows(self, candidate: Candidate) -> bool:
        """Take a file that begins as the ledger does."""
        return not candidate.is_folder and is_text(candidate) and _LEDGER.match(text_of(candidate.head)) is not None

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its entries."""
        facts = LedgerReading()
        path = candidate.path
        run_dir = path.parent.parent
        is_rank_0 = path == ledger_path(run_dir)
        yield from read_entries(path, facts, supervisor_ledger_path(run_dir) if is_rank_0 else None)
        if facts.torn:
            reading.damage.append(f"{candidate.name}: {facts.torn} lines are torn")
        if facts.lost:
            reading.damage.append(f"{candidate.name}: {facts.lost} lines were lost while the disk refused them")

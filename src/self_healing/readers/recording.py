"""Recognise what a file or folder recorded of a run, by its content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ..core.errors import InputError
from ..core.ledger import Entry, LedgerReading
from ..core.run_directory import ledger_path, supervisor_ledger_path
from .ledger_file import read_entries
from .metrics_table import Skipped, delimiter_of, parsed, read_csv, read_jsonl
from .text_file import EXPECTED, quoted, read_head, text_of
from .trainer_state import Observation, read_trainer_state

_LEDGER = re.compile(r'\{"v":\s?\d{1,9},\s?"seq":\s?\d')
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_LINES_NAMES = (".jsonl", ".ndjson", ".jsonlines")


class Format(StrEnum):
    """The kinds of recording that can be read."""

    LEDGER = "ledger"
    TRAINER_STATE = "trainer-state"
    CSV = "csv"
    JSON_LINES = "json-lines"


@dataclass(frozen=True, slots=True)
class MetricsRecording:
    """Recorded metrics: a `trainer_state.json` or a table. Reading it again gives the same observations."""

    path: Path
    format: Format
    _head: bytes = field(default=b"", repr=False)

    def observations(self, skipped: Skipped | None = None) -> Iterator[Observation]:
        """Yield what was observed, in the order of the file; `skipped` counts the lines that could not be read."""
        match self.format:
            case Format.CSV:
                return read_csv(self.path, self._head, skipped)
            case Format.JSON_LINES:
                return read_jsonl(self.path, self._head, skipped)
        return read_trainer_state(self.path, self._head)


@dataclass(frozen=True, slots=True)
class LedgerRecording:
    """The ledger of a run."""

    path: Path
    format: Format = Format.LEDGER

    def entries(self, reading: LedgerReading | None = None) -> Iterator[Entry]:
        """Yield its entries in the order of the file; `reading` learns what is torn, thinned or lost."""
        return read_entries(self.path, LedgerReading() if reading is None else reading)


Recording = MetricsRecording | LedgerRecording


def open_recording(path: str | Path) -> Recording:
    """Recognise a recording by its content; a folder stands for the newest recording of the run inside.

    Raises:
        InputError: there is nothing to read; the text names the file, what was found and what is expected.

    """
    path = Path(path)
    if _is_directory(path):
        path = _inside(path)
    head = read_head(path)
    text = text_of(head)
    format_ = _format_of(path, text, complete=len(head) == path.stat().st_size)
    return LedgerRecording(path) if format_ is Format.LEDGER else MetricsRecording(path, format_, head[:4])


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _inside(folder: Path) -> Path:
    """Return the recording of a run directory: our ledger, its own state, the newest checkpoint's, or a supervisor's."""
    for candidate in (ledger_path(folder), folder / "ledger.jsonl", folder / "trainer_state.json"):
        if candidate.is_file():
            return candidate
    try:
        numbered = [(int(hit[1]), entry) for entry in folder.iterdir() if (hit := _CHECKPOINT.fullmatch(entry.name))]
    except OSError as error:
        raise InputError(f"{folder}: the folder cannot be read ({error.strerror})") from error
    for _, checkpoint in sorted(numbered, reverse=True):
        if (checkpoint / "trainer_state.json").is_file():
            return checkpoint / "trainer_state.json"
    if supervisor_ledger_path(folder).is_file():
        return supervisor_ledger_path(folder)
    raise InputError(
        f"{folder}: is a folder without healing/ledger.jsonl, trainer_state.json, checkpoint-*/trainer_state.json or healing/ledger.supervisor.jsonl; "
        "name the recording itself"
    )


def _format_of(path: Path, text: str, *, complete: bool) -> Format:
    if _LEDGER.match(text):
        return Format.LEDGER
    if text.startswith("["):
        return Format.TRAINER_STATE
    if text.startswith("{"):
        return _format_of_objects(path, text, complete=complete)
    lines = [line for line in text.splitlines()[:200] if line.strip("\0 \t") and not line.lstrip().startswith("#")]
    if lines and delimiter_of(lines[0].strip()) is not None:
        return Format.CSV
    found = quoted(lines[0] if lines else text)
    raise InputError(f"{path}: is of no format that can be read here (it begins with {found}); {EXPECTED}")


def _format_of_objects(path: Path, text: str, *, complete: bool) -> Format:
    """Tell JSON lines from one JSON document: a first line that is a whole object, and more lines after it."""
    line, _, rest = text.partition("\n")
    if not rest.strip() and not complete:
        return Format.TRAINER_STATE
    first = parsed(line)
    if first is None or "log_history" in first:
        return Format.TRAINER_STATE
    is_table = rest.lstrip().startswith("{") or path.suffix.lower() in _LINES_NAMES
    return Format.JSON_LINES if is_table else Format.TRAINER_STATE

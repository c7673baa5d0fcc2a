"""Read tables of metrics: CSV with a header, and JSON lines; row by row, in constant memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ..core.errors import InputError
from ..core.signal import Metrics
from .names import KNOWN, RunCounter, canonical, is_step, layout_of, metrics_of, number, step_number
from .text_file import EXPECTED, open_text, quoted
from .trainer_state import Observation

DELIMITERS = ",\t;|"
LONGEST_LINE = 4 * 2**20
_WANDB_EXTREMES = ("__MIN", "__MAX")


@dataclass
class Skipped:
    """How much of a table could not be read as observations."""

    lines: int = 0
    """Lines that are no row of the table: cut off, damaged, or of something else."""


@dataclass
class _Rows:
    """Turns rows into observations: steps, runs and time."""

    run: RunCounter = field(default_factory=RunCounter)
    step: int = -1

    def observe(self, row: dict[str, object]) -> Observation | None:
        layout = layout_of(tuple(row))
        values = metrics_of(row, layout)
        if not values:
            return None
        recorded = step_number(row[layout.step]) if layout.step is not None else None
        self.step = self.step + 1 if recorded is None else recorded
        time_s = number(row[layout.time]) if layout.time is not None else None
        signal = Metrics(step=self.step, time_s=_finite(time_s), values=values)
        return Observation(self.run.count(self.step, values), signal)


def _finite(time_s: float | None) -> float:
    return time_s if time_s is not None and abs(time_s) < 1e18 else 0.0


def delimiter_of(line: str) -> str | None:
    """Return the character that separates the columns of a header, or None where the line is no header of metrics."""
    for delimiter in sorted(DELIMITERS, key=lambda character: -line.count(character)):
        names = _cells(line, delimiter)
        if any(_is_telling(name) for name in names) and not any(number(name) is not None for name in names if name):
            return delimiter
    return None


def _is_telling(name: str) -> bool:
    tail = name.rpartition(" - ")[2]
    known = canonical(tail)
    return is_step(tail) or known in KNOWN or known.lower() in KNOWN or known.endswith("loss")


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def read_csv(path: Path, head: bytes = b"", skipped: Skipped | None = None) -> Iterator[Observation]:
    """Yield the rows of a CSV file with a header; empty cells and text are left out.

    Lines before the header that are blank or begin with # are passed over. A header that comes again, as when a
    second run appends to the file, starts the counting of rows again.

    Raises:
        InputError: there is no header that names a step or a known metric.

    """
    facts = Skipped() if skipped is None else skipped
    with open_text(path, head) as file:
        header, delimiter = _header(file, path)
        names = _own_names(header)
        rows = _Rows()
        reader = csv.reader(_lines(file, facts), delimiter=delimiter)
        try:
            for cells in reader:
                row: dict[str, object] = {
                    n: cell for n, cell in zip(names, cells, strict=False) if n is not None and cell
                }
                observation = rows.observe(row)
                if observation is not None:
                    yield observation
                elif [cell.strip() for cell in cells] == header:
                    rows.step = -1
                elif row and all(number(cell) is None for cell in row.values()):
                    facts.lines += 1
        except csv.Error as error:
            raise InputError(f"{path}: is no readable CSV near row {reader.line_num + 1}: {error}") from None


def _header(file: TextIO, path: Path) -> tuple[list[str], str]:
    while line := file.readline(LONGEST_LINE):
        text = line.strip("\0\r\n \ufeff")
        if not text or text.startswith("#"):
            continue
        delimiter = delimiter_of(text)
        if delimiter is None:
            break
        return _cells(text, delimiter), delimiter
    raise InputError(f"{path}: the first line {quoted(line)} is no header that names a step or a metric; {EXPECTED}")


def _own_names(header: Sequence[str]) -> list[str | None]:
    """Return the columns' names; those exported by W&B lose the run's name where all belong to one run."""
    runs = {name.rpartition(" - ")[0] for name in header if " - " in name}
    kept: list[str | None] = []
    for name in header:
        short = name.rpartition(" - ")[2] if len(runs) == 1 else name
        kept.append(None if short.endswith(_WANDB_EXTREMES) or not short else short)
    return kept


def _lines(file: TextIO, facts: Skipped) -> Iterator[str]:
    """Yield lines without ever holding a longer one, zeros of a crash left out."""
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith("\n"):
            yield line.replace("\0", "") if "\0" in line else line
            continue
        facts.lines += 1
        while line and not line.endswith("\n"):
            line = file.readline(LONGEST_LINE)


def read_jsonl(path: Path, head: bytes = b"", skipped: Skipped | None = None) -> Iterator[Observation]:
    """Yield the objects of a file of JSON lines; lines that are something else are counted and left out."""
    facts = Skipped() if skipped is None else skipped
    rows = _Rows()
    with open_text(path, head) as file:
        for row in _objects(_lines(file, facts), facts):
            observation = rows.observe(row)
            if observation is not None:
                yield observation


def _objects(lines: Iterable[str], facts: Skipped) -> Iterator[dict[str, object]]:
    for line in lines:
        if line.isspace():
            continue
        row = parsed(line)
        if row is None:
            facts.lines += 1
        else:
            yield row


def parsed(line: str) -> dict[str, object] | None:
    """Return the object a line of JSON holds, or None for any other line."""
    try:
        row = json.loads(line, parse_int=_integer)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 20 else float(text)

"""The format `csv-table`: metrics in columns, under a header that names them."""

from __future__ import annotations

from collections.abc import Iterator

from ..metrics_table import Skipped, delimiter_of, read_csv
from ..source import Candidate, InputFormat, Item, Reading, Seen
from ..text_file import text_of
from .json_lines import is_text


class CsvTable(InputFormat):
    """Metrics as CSV, as spreadsheets, Lightning and trackers write them."""

    order = 40

    def knows(self, candidate: Candidate) -> bool:
        """Take a file that begins with a header of metrics, and has nothing before it but remarks."""
        if candidate.is_folder or not is_text(candidate):
            return False
        lines = text_of(candidate.head).splitlines()[:200]
        told = [line.strip() for line in lines if line.strip("\0 \t") and not line.lstrip().startswith("#")]
        if not told or (delimiter := delimiter_of(told[0])) is None:
            return False
        # A sentence with a comma is no header: the rows below must have as many columns.
        return len(told) == 1 or abs(told[1].count(delimiter) - told[0].count(delimiter)) <= 1

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its rows; what is no row is counted."""
        skipped = Skipped()
        for run, signal in read_csv(candidate.path, candidate.head[:4], skipped):
            yield Seen(run, signal)
        if skipped.lines:
            reading.damage.append(f"{candidate.name}: {skipped.lines} lines could not be read")

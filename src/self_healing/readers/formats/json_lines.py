"""The format `json-lines`: one JSON object of metrics a line."""

from __future__ import annotations

from collections.abc import Iterator

from ..log_text import open_log, read_blocks
from ..metrics_table import Skipped, parsed, read_jsonl
from ..names import KNOWN, canonical, is_step
from ..source import Candidate, InputFormat, Item, Reading, Seen
from ..text_file import GZIP, text_of

_NAMES = (".jsonl", ".ndjson", ".jsonlines")


class JsonLines(InputFormat):
    """Metrics as JSON lines, as many trackers export them; what else stands between them is read as text."""

    order = 20

    def knows(self, candidate: Candidate) -> bool:
        """Take a file of objects, one a line, among the first of which are metrics."""
        if candidate.is_folder or not is_text(candidate) or not is_lines(candidate):
            return False
        rows = [row for line in text_of(candidate.head).splitlines()[:50] if (row := parsed(line)) is not None]
        return any(_is_of_metrics(row) for row in rows)

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its observations; where other lines are among them, the text as well."""
        skipped = Skipped()
        for run, signal in read_jsonl(candidate.path, candidate.head[:4], skipped):
            yield Seen(run, signal)
        if skipped.lines:
            reading.damage.append(f"{candidate.name}: {skipped.lines} lines are no metrics")
            with open_log(candidate.path) as file:
                yield from read_blocks(file, name=candidate.name)


def _is_of_metrics(row: dict[str, object]) -> bool:
    names = {canonical(name) for name in row}
    return not KNOWN.isdisjoint(names) or any(name.endswith("loss") or is_step(name) for name in names)


def is_text(candidate: Candidate) -> bool:
    """Say whether a file may be JSON or a table at all: not standard input, and nothing packed."""
    return not candidate.is_stdin and bool(candidate.head) and not candidate.head.startswith(GZIP)


def is_lines(candidate: Candidate) -> bool:
    """Tell JSON lines from one JSON document: the first line is a whole object, and another one follows, or the name says so."""
    text = text_of(candidate.head)
    if not text.startswith("{"):
        return False
    line, _, rest = text.partition("\n")
    first = parsed(line)
    if first is None or "log_history" in first:
        return False
    return bool(rest.strip("\0 \t\r\n")) or candidate.path.suffix.lower() in _NAMES

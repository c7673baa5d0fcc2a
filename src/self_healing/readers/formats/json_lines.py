"""The format `json-lines`: one JSON object of metrics a line."""

from __future__ import annotations

from collections.abc import Iterator

from ..metrics_table import Skipped, parsed, read_jsonl
from ..source import Candidate, InputFormat, Item, Reading, Seen
from ..text_file import GZIP, text_of

_NAMES = (".jsonl", ".ndjson", ".jsonlines")


class JsonLines(InputFormat):
    """Metrics as JSON lines, as many trackers export them."""

    order = 20

    def knows(self, candidate: Candidate) -> bool:
        """Take a file whose first line is a whole object, with more of them after it."""
        return not candidate.is_folder and is_text(candidate) and is_table(candidate)

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield its observations; lines that are something else are counted."""
        skipped = Skipped()
        for run, signal in read_jsonl(candidate.path, candidate.head[:4], skipped):
            yield Seen(run, signal)
        if skipped.lines:
            reading.damage.append(f"{candidate.name}: {skipped.lines} lines could not be read")


def is_text(candidate: Candidate) -> bool:
    """Say whether a file may be JSON or a table at all: not standard input, and nothing packed."""
    return not candidate.is_stdin and is_content(candidate.head)


def is_content(head: bytes) -> bool:
    """Say whether a beginning is that of a text that is not packed."""
    return bool(head) and not head.startswith(GZIP)


def is_table(candidate: Candidate) -> bool:
    """Tell JSON lines from one JSON document."""
    text = text_of(candidate.head)
    if not text.startswith("{"):
        return False
    line, _, rest = text.partition("\n")
    first = parsed(line)
    if first is None or "log_history" in first:
        return False
    return rest.lstrip().startswith("{") or candidate.path.suffix.lower() in _NAMES

"""Collect the lines round those that matter, each process's apart, until nothing of them is left open."""

from __future__ import annotations

from collections.abc import Callable

from .sources import split_source
from .tracebacks import HEADER, Passage, Taken, Trace, passages

AFTER = 8
"""Lines that are kept after one that matters: messages and summaries of launchers take several."""
MOST_LINES = 1200
"""Lines that are kept together; a longer passage is cut."""
MOST_SOURCES = 256
LONGEST_LINE = 4000
"""Characters kept of a line: of a longer one its beginning and its end, where messages stand."""


class Walk:
    """The lines at hand."""

    def __init__(self, on_passage: Callable[[Passage], None]) -> None:
        self._on_passage = on_passage
        self._lines: dict[str, list[Taken]] = {}
        self._open: dict[str, Trace] = {}
        self._count = 0
        self._after = 0
        self.follows = True
        """Whether printed exceptions are followed to their end: not where a text is full of them."""

    @property
    def wants_more(self) -> bool:
        """Say whether the next line belongs to what was taken."""
        return self._after > 0 or bool(self._open)

    def take(self, number: int, text: str, *, is_hot: bool) -> None:
        """Take the next line."""
        if self._count >= MOST_LINES:
            self.close()
        self._count += 1
        source, rest = split_source(_cut(text))
        if source not in self._lines and len(self._lines) >= MOST_SOURCES:
            source = ""
        self._lines.setdefault(source, []).append(Taken(number, rest, is_hot))
        self._after = AFTER if is_hot else self._after - 1
        if HEADER in rest and self.follows:
            self._open[source] = Trace(rest)
        elif source in self._open and not self._open[source].is_frame(rest):
            del self._open[source]
            self._after = AFTER

    def close(self) -> None:
        """Hand on what was taken: nothing that follows belongs to it."""
        lines, self._lines = self._lines, {}
        self._open.clear()
        self._count = self._after = 0
        found = [passage for source, taken in lines.items() for passage in passages(source, taken)]
        for passage in sorted(found, key=lambda passage: passage.lines[0].number):
            self._on_passage(passage)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_LINE:
        return text
    half = LONGEST_LINE // 2
    return f"{text[:half]} [...] {text[-half:]}"

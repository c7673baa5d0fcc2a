"""Cheap tests of lines, which let most of a log pass without being parsed.

A log is mostly lines without metrics. Looking for a few short words in many lines at once runs at memory speed; taking
each line into the hand first would cost ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

try:
    import re2
except ImportError:  # no wheel for this machine: the same lines, more slowly
    re2 = None

METRIC_WORDS = ("loss", "reward", "epoch", "grad", "acc", "ppl", "perplexity")
"""One of these, in any case, is part of every line that shows metrics of training."""

BAR_MARK = "%|"
"""Part of the progress bars that know their end."""


class Span(NamedTuple):
    """A line inside a text of many."""

    start: int
    end: int
    above: int
    """How many lines come before it."""


def lowered(text: str) -> str:
    """Return a text in lower case, every character in its place and those outside ASCII as question marks."""
    # Small forms of other letters are looked up one by one, which takes ten times as long; a bar is full of such characters.
    return text.lower() if text.isascii() else text.encode("ascii", "replace").lower().decode("ascii")


def lines_with(words: tuple[str, ...], low: str) -> Iterator[Span]:
    """Yield the lines of a text in lower case, as `lowered` returns it, that hold one of the words, in order."""
    data = low.encode("ascii")
    above = before = 0
    for found, end in _found_at_once(words, data) if re2 is not None else _found_one_by_one(words, data):
        start = data.rfind(b"\n", 0, found) + 1
        above += data.count(b"\n", before, start)
        before = start
        yield Span(start, end, above)


def _found_at_once(words: tuple[str, ...], data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where the first word of each line is, and where that line ends: all words as one automaton."""
    search = _automaton(words).search
    end = 0
    while (found := search(data, end)) is not None:
        place = int(found.start())
        end = _end_of_line(data, place)
        yield place, end


def _found_one_by_one(words: tuple[str, ...], data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the same where google-re2 is not installed: still faster than the standard library's alternatives."""
    ends: dict[int, int] = {}
    for word in words:
        found = data.find(word.encode())
        while found >= 0:
            end = _end_of_line(data, found)
            ends[data.rfind(b"\n", 0, found) + 1] = end
            found = data.find(word.encode(), end)
    return iter(sorted(ends.items()))


def _end_of_line(data: bytes, place: int) -> int:
    end = data.find(b"\n", place)
    return len(data) if end < 0 else end


@lru_cache(maxsize=8)
def _automaton(words: tuple[str, ...]) -> Any:
    options = re2.Options()
    options.never_capture = True
    return re2.compile("|".join(re2.escape(word) for word in words), options)


def holds_any(words: Sequence[str], low: str) -> bool:
    """Say whether a line in lower case holds one of the words."""
    return any(word in low for word in words)

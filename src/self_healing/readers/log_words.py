"""Cheap tests of lines, which let most of a log pass without being parsed.

A log is mostly lines without metrics. Looking for a few short words in many lines at once runs at memory speed; taking
each line into the hand first would cost ten times as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

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


def lines_with(words: Sequence[str], low: str) -> Iterator[Span]:
    """Yield the lines of a text in lower case that hold one of the words, in order."""
    ends: dict[int, int] = {}
    for word in words:
        found = low.find(word)
        while found >= 0:
            end = low.find("\n", found)
            end = len(low) if end < 0 else end
            ends[low.rfind("\n", 0, found) + 1] = end
            found = low.find(word, end)
    above = before = 0
    for start in sorted(ends):
        above += low.count("\n", before, start)
        before = start
        yield Span(start, ends[start], above)


def holds_any(words: Sequence[str], low: str) -> bool:
    """Say whether a line in lower case holds one of the words."""
    return any(word in low for word in words)

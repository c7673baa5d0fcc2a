"""Find the few lines of a long text that may matter, at the speed of reading it.

All expressions of the catalogue run as one automaton (google-re2: linear time whatever the text is, no look-around). Where
it is not installed the standard library's `re` does the same work, right but slowly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..core.cause import Pattern
from .literals import finder

try:
    import re2
except ImportError:  # no wheel for this machine: the same answers, more slowly
    re2 = None

MARKS = {
    "traceback": r"Traceback \(most recent call last\)",
    "exception": (
        r"(?m:^(?:\[\w{1,20}\]: ?)?(?:(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{0,60}(?:Error|Exception): "
        r"|[A-Z][a-z]\w{0,60}(?:Error|Exception): {1,4}(?:[A-Za-z]{4}|[A-Za-z]{1,3} [A-Za-z]|['\"`\[(<])))"  # no number: it may be a metric
    ),
    "finished": (
        r"\b(?:training|fine-?tuning)(?: (?:run|loop|process))? (?:has |is |was )?(?:now )?(?:successfully )?(?:completed?|finished|done)\b"
        r"|\b(?:finished|completed) (?:the )?(?:training|successfully)\b|['\"]train_runtime['\"]|train_runtime\s{0,30}="
        r"|early stopping (?:triggered|at|after)|max_steps=\d{1,12}` reached|max_epochs=\d{1,12}` reached"
    ),
}
"""What matters of a text besides the catalogue: where an exception is printed, and whether the run came to its end."""
QUIET_MARKS = frozenset({"traceback", "finished"})
"""Marks that say nothing by themselves."""
_MEMORY_BYTES = 64 * 2**20
"""What the automaton of all rows may take: with 8 MiB it does not fit and becomes a thousand times slower."""


class Hit(NamedTuple):
    """A line that matters."""

    start: int
    """Where the line begins, in bytes."""
    end: int
    found: int
    """Where in it the first match begins."""
    rows: frozenset[str]
    """The names of the rows and marks that it may be of."""


class Sieve:
    """All rows as one expression, and as a set that says which of them a piece of text may be of."""

    def __init__(self, named: Sequence[tuple[str, str]]) -> None:
        self._names = tuple(name for name, _ in named)
        texts = [text for _, text in named]
        self._find, self._which = _engines("|".join(f"(?:{text})" for text in texts), texts)

    def hits(self, data: bytes) -> Iterator[Hit]:
        """Yield the lines of a text that matter, in order."""
        place = 0
        while self._names and place <= len(data):
            found = self._find(data, place)
            if found < 0:
                return
            start = data.rfind(b"\n", 0, found) + 1
            end = data.find(b"\n", found)
            end = len(data) if end < 0 else end
            yield Hit(start, end, found, self.rows(data[start:end]))
            place = end + 1

    def rows(self, data: bytes) -> frozenset[str]:
        """Return which rows and marks a piece of text is of."""
        return frozenset(self._names[index] for index in self._which(data))


def sieve_of(patterns: Iterable[Pattern], *, without: frozenset[str] = frozenset()) -> Sieve:
    """Return the sieve of a catalogue; it is made once, for making it takes longer than reading a short text."""
    named = {**{row.name: row.text for row in patterns if row.text}, **MARKS}
    return _made(tuple((name, text) for name, text in named.items() if name not in without))


@lru_cache(maxsize=2)
def _made(named: tuple[tuple[str, str], ...]) -> Sieve:
    return Sieve(named)


Find = Callable[[bytes, int], int]
Which = Callable[[bytes], Sequence[int]]


def _engines(together: str, each: list[str]) -> tuple[Find, Which]:
    return _with_re2(together, each) if re2 is not None else _with_re(each)


def _with_re2(together: str, each: list[str]) -> tuple[Find, Which]:
    options = re2.Options()
    options.case_sensitive = False
    options.never_capture = True
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    automaton: Any = re2.compile(together, options)
    several: Any = re2.Set.SearchSet(options)
    for text in each:
        several.Add(text)
    several.Compile()

    def find(data: bytes, place: int) -> int:
        found = automaton.search(data, place)
        return -1 if found is None else int(found.start())

    def which(data: bytes) -> Sequence[int]:
        indices: Sequence[int] | None = several.Match(data)
        return indices or ()

    return find, which


def _with_re(each: list[str]) -> tuple[Find, Which]:
    single = [re.compile(text.encode(), re.IGNORECASE) for text in each]

    def which(data: bytes) -> Sequence[int]:
        return [index for index, expression in enumerate(single) if expression.search(data)]

    return finder(each), which

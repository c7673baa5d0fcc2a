"""Which words a text must hold for an expression to match: where there is no google-re2, only lines with one are looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from re import _parser  # type: ignore[attr-defined]  # the only parser of its syntax that there is
from typing import Any

_REACH = 600
"""Bytes after a line that a match which begins in it may go on for."""


def required(expression: str) -> frozenset[str]:
    """Return words in lower case of which a match holds at least one; none where nothing can be said."""
    return _of(_parser.parse(expression, re.IGNORECASE))


def _of(parts: Iterable[Any]) -> frozenset[str]:
    best: frozenset[str] = frozenset()
    run = ""
    for kind, value in [*parts, (None, None)]:
        if str(kind) == "LITERAL":
            run += chr(value).lower()
            continue
        best, run = _better(best, frozenset({run} if run else ())), ""
        match str(kind):
            case "SUBPATTERN":
                best = _better(best, _of(value[-1]))
            case "BRANCH":
                each = [_of(branch) for branch in value[1]]
                best = _better(best, frozenset().union(*each) if all(each) else frozenset())
            case "MAX_REPEAT" | "MIN_REPEAT" if value[0] > 0:
                best = _better(best, _of(value[2]))
    return best


def _better(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    return max(one, other, key=lambda words: min(map(len, words), default=0))


def finder(texts: Sequence[str]) -> Callable[[bytes, int], int]:
    """Return a function that finds the first match of any expression from a place on."""
    words: dict[bytes, list[re.Pattern[bytes]]] = {}
    for text in texts:
        compiled = re.compile(text.encode(), re.IGNORECASE)
        for word in required(text) or {""}:
            words.setdefault(word.encode(), []).append(compiled)
    known: list[tuple[bytes, list[int]]] = []

    def places(data: bytes) -> list[int]:
        low = data.lower()
        lines: dict[int, set[re.Pattern[bytes]]] = {}
        for word, expressions in words.items():
            place = low.find(word)
            while place >= 0:
                lines.setdefault(low.rfind(b"\n", 0, place) + 1, set()).update(expressions)
                end = low.find(b"\n", place)
                place = low.find(word, end + 1) if end >= 0 else -1
        found = []
        for start, expressions_here in lines.items():
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            hits = (e.search(data, start, min(len(data), end + _REACH)) for e in expressions_here)
            found += [hit.start() for hit in hits if hit is not None]
        return sorted(set(found))

    def find(data: bytes, place: int) -> int:
        if not known or known[0][0] is not data:
            known[:] = [(data, places(data))]
        return next((found for found in known[0][1] if found >= place), -1)

    return find

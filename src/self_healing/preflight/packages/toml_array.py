"""Where the texts of a TOML array stand, so that one can be changed and the rest stays as it was, comments too."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

_TABLE = re.compile(r"(?m)^\s*\[")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_BLANK = re.compile(r"(?:\s|#[^\n]*)*")


@dataclass(frozen=True, slots=True)
class Element:
    """One text of an array."""

    start: int
    """Of its quote."""
    end: int
    value: str


@dataclass(frozen=True, slots=True)
class Array:
    """An array of texts."""

    start: int
    """Of its bracket."""
    end: int
    """Of the closing one."""
    elements: tuple[Element, ...]
    has_last_comma: bool


def find_array(text: str, key: str) -> Array | None:
    """Return the array of a top-level key; None where there is none, or one that holds other things than plain texts."""
    head = re.search(rf"(?m)^\s*[\"']?{re.escape(key)}[\"']?\s*=\s*\[", text)
    if head is None or _TABLE.search(text, 0, head.start()) is not None:  # below a table it is a key of that
        return None
    at = head.end()
    elements: list[Element] = []
    has_comma = False
    while True:
        blank = _BLANK.match(text, at)
        at = blank.end() if blank is not None else at
        if text[at : at + 1] == "]":
            return Array(head.end() - 1, at, tuple(elements), has_comma)
        if text[at : at + 1] == "," and elements and not has_comma:
            has_comma = True
            at += 1
            continue
        string = _STRING.match(text, at)
        if string is None or (elements and not has_comma):
            return None
        elements.append(Element(at, string.end(), tomllib.loads(f"x = {string[0]}")["x"]))
        has_comma = False
        at = string.end()

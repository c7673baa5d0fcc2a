"""A value in the text of a config file, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .numbers import written
from .setting import KeyPath

MOST_VALUES = 20_000
"""Values of a config file; YAML's aliases can make billions of a few lines."""


class Unreadable(ValueError):
    """A text that is not what its format asks for: what is wrong, and in which line (0 where not known)."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One value, or a list or table with its problem, under the path of its key."""

    path: KeyPath
    value: float | str | None
    target: KeyPath
    """The path under which the value itself stands: another one for an alias."""
    line: int = 0
    span: tuple[int, int] | None = None
    """Where the characters of the value are; None where the format's own library replaces them."""
    quote: str = ""
    problem: str = ""
    twice: int = 0
    """The line where the same key stood before, in the same table."""


def spliced(text: str, leaves: Iterable[Leaf], values: Mapping[KeyPath, float | str], quote_text: str = '"') -> str:
    """Return a text with other values at the places of some; every other character stays."""
    places = {leaf.path: leaf for leaf in leaves if leaf.path == leaf.target}
    cuts = sorted(((places[path], value) for path, value in values.items()), key=lambda cut: cut[0].span or (0, 0))
    parts, done = [], 0
    for leaf, value in cuts:
        assert leaf.span is not None, leaf
        quote = leaf.quote or (quote_text if isinstance(value, str) else "")
        parts += [text[done : leaf.span[0]], _between(quote, written(value), is_alone=leaf.span[0] == leaf.span[1])]
        done = leaf.span[1]
    return "".join([*parts, text[done:]])


def _between(quote: str, text: str, *, is_alone: bool) -> str:
    if quote == '"':
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    elif quote == "'":
        text = text.replace("'", "''")
    return f"{' ' if is_alone else ''}{quote}{text}{quote}"  # behind a `key:` that holds nothing, a space is missing

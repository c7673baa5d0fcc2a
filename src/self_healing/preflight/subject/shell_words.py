"""A text for a shell, as the words of its commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

_BETWEEN = frozenset({"&&", "||", ";", "|", "&", "(", ")"})


def shell_commands(text: str) -> Iterator[list[str]]:
    """Yield the commands of a text for a shell, as words."""
    for line in text.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote that is not closed
            words = line.split()
        part: list[str] = []
        for word in (*words, ";"):
            if word in _BETWEEN:
                if part:
                    yield part
                part = []
            else:
                part.append(word)

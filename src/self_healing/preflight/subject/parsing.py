"""Python's own parser, for several threads.

Python 3.11 counts how deep it is in a tree in one place for all threads: when two parse at a time, now and then one of
them ends with a `SystemError` about the depth, although nothing is wrong with what it parsed.
"""

from __future__ import annotations

import ast
import threading
from typing import Any

_TRIES = 5
_one_at_a_time = threading.Lock()


def parsed(text: str | bytes, named: str = "<text>", mode: str = "exec") -> Any:
    """Return the tree of a text: a module, or with the mode `eval` an expression."""
    for _ in range(_TRIES - 1):
        try:
            with _one_at_a_time:
                return ast.parse(text, named, mode)
        except SystemError:  # somebody else's thread parsed meanwhile, without asking us
            continue
    with _one_at_a_time:
        return ast.parse(text, named, mode)


def literal(text: str) -> Any:
    """Return the value of a literal, as `ast.literal_eval` does."""
    return ast.literal_eval(parsed(text, mode="eval"))

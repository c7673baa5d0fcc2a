"""The text of a script by the places of its expressions."""

from __future__ import annotations

import ast

_LONGEST_LINE = 10_000
_MOST_LINES = 100


class Source:
    """The lines of a script."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def written(self, node: ast.expr) -> str:
        """Return the text of an expression; columns count bytes."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if first == last and len(self._lines[first]) > _LONGEST_LINE:
            return "..."  # thousands of expressions on one line would take long, and none is to be shown
        lines = [line.encode() for line in self._lines[first : min(last + 1, first + _MOST_LINES)]]
        if last - first < _MOST_LINES:
            lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode(errors="replace")

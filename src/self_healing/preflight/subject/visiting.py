"""Going through a script in the order of its text, with what one stands in."""

from __future__ import annotations

import ast


class Visitor(ast.NodeVisitor):
    """Knows which function a node stands in, and whether its errors are caught."""

    def __init__(self) -> None:
        """Begin at the top."""
        self._tries = 0
        self._functions: list[str] = []

    @property
    def _function(self) -> str:
        """The function it is in; empty at the top."""
        return self._functions[-1] if self._functions else ""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:  # named by ast
        """Go through a function."""
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        """Go through `try`: only errors of its body are caught."""
        self._tries += 1
        for child in node.body:
            self.visit(child)
        self._tries -= 1
        after: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        for each in after:
            self.visit(each)

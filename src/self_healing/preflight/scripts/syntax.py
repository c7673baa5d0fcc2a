"""What stands around a call in a script: what becomes of its result, who catches what it raises."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

from ..subject import Call, Script

SAYING = frozenset(
    """
    print pprint print_exc format_exc warning warn error exception info debug log critical write echo secho rule
    """.split()
)
"""The last names of functions that tell people something."""


class Syntax:
    """The tree of a script, with the way up."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.nodes = tuple(ast.walk(tree))
        """All of them, the outer ones first."""
        self.remembered: dict[str, Any] = {}
        """What was made of it once, for those who ask again."""
        self._above: dict[ast.AST, ast.AST] = {
            child: node for node in self.nodes for child in ast.iter_child_nodes(node)
        }

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield what a node stands in, the innermost first."""
        while (over := self._above.get(node)) is not None:
            yield over
            node = over

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return what a node directly stands in."""
        return self._above.get(node)

    def scope(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module:
        """Return the function a node stands in, or the module."""
        functions = (each for each in self.above(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        return next(functions, self.tree)

    def is_dropped(self, call: ast.Call) -> bool:
        """Say whether nobody gets the result of a call."""
        return isinstance(self.parent(call), ast.Expr)

    def kept_as(self, call: ast.Call) -> str:
        """Return the name that the result of a call is assigned to; empty where it goes elsewhere."""
        parent = self.parent(call)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            return parent.targets[0].id
        if isinstance(parent, ast.AnnAssign | ast.NamedExpr) and isinstance(parent.target, ast.Name):
            return parent.target.id
        if isinstance(parent, ast.withitem) and isinstance(parent.optional_vars, ast.Name):
            return parent.optional_vars.id
        return ""

    def attributes_of(self, name: str, within: ast.AST) -> tuple[set[str], bool]:
        """Return the attributes of a name that are looked at, and whether the whole is handed to somebody."""
        looked: set[str] = set()
        is_handed_on = False
        for node in self._used.get(name, ()):
            if within is self.tree or within in self.above(node):
                parent = self.parent(node)
                if isinstance(parent, ast.Attribute):
                    looked.add(parent.attr)
                else:
                    is_handed_on = True
        return looked, is_handed_on

    @functools.cached_property
    def _used(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    @functools.cached_property
    def tested(self) -> frozenset[str]:
        """The names that some condition asks about."""
        tests = (each.test for each in self.nodes if isinstance(each, ast.If | ast.IfExp | ast.While | ast.Assert))
        return frozenset(each.id for test in tests for each in ast.walk(test) if isinstance(each, ast.Name))

    @functools.cached_property
    def assigned(self) -> dict[str, list[ast.AST]]:
        """Everything that gives a name a value: assignments, loops, parameters."""
        found: dict[str, list[ast.AST]] = {}
        for node in self.nodes:
            if isinstance(node, ast.arg):
                found.setdefault(node.arg, []).append(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
                for name in names:
                    found.setdefault(name, []).append(node)
        return found


@functools.lru_cache(maxsize=8)
def _of(tree: ast.Module) -> Syntax:
    return Syntax(tree)


def syntax_of(script: Script) -> Syntax:
    """Return the tree of a script with the way up; made once for all checks."""
    return _of(script.tree)


def is_conditional(script: Script, call: Call) -> bool:
    """Say whether a call stands under a condition, other than that the script is the program."""
    return any(
        isinstance(node, ast.If | ast.IfExp | ast.Match)
        and not (isinstance(node, ast.If) and "__main__" in ast.dump(node.test))
        for node in syntax_of(script).above(call.node)
    )


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield every text constant in a part of a script."""
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def last_of(node: ast.expr | None) -> str:
    """Return the last part of the name of a function or an object: `step` of `optimizer.step`; empty where it has none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

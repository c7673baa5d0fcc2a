"""The variables of the environment that a script reads, and how careful it is about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .folding import ENVIRONMENT_CALLS, Names
from .gathering import plain_name
from .visiting import Visitor


@dataclass(frozen=True, slots=True)
class EnvironmentRead:
    """One place where a variable of the environment is read."""

    name: str
    line: int
    has_default: bool
    """`os.getenv("X", "y")`, `os.getenv("X") or "y"`."""
    is_required: bool
    """`os.environ["X"]`: a KeyError where it is not set."""
    is_checked: bool
    """It is looked at whether it is set: `if not token`, `"X" in os.environ`, inside `try`."""
    target: str = ""
    """The name it is assigned to, where it is."""
    is_demanded: bool = False
    """The script ends by itself where it is not set: `if not token: raise ...`, `assert token`."""


def environment_reads(tree: ast.Module, names: Names) -> tuple[EnvironmentRead, ...]:
    """Return the variables that a script reads, in the order of the text."""
    reader = _Reader(names)
    reader.visit(tree)
    found = [
        EnvironmentRead(
            name=read.name,
            line=read.line,
            has_default=read.has_default,
            is_required=read.is_required,
            is_checked=read.is_checked or read.name in reader.asked or (read.target in reader.tested),
            target=read.target,
            is_demanded=(read.target in reader.demanded or read.name in reader.demanded) and not read.has_default,
        )
        for read in reader.found
        if read.name not in reader.given or not read.is_required
    ]
    return tuple(sorted(found, key=lambda read: read.line))


class _Reader(Visitor, ast.NodeVisitor):  # the second is there already; the linter knows the names of its methods
    def __init__(self, names: Names) -> None:
        super().__init__()
        self.found: list[EnvironmentRead] = []
        self.asked: set[str] = set()
        """Variables of which it is asked whether they are set."""
        self.given: set[str] = set()
        """Variables that the script sets itself."""
        self.tested: set[str] = set()
        self.demanded: set[str] = set()
        """Names without which the script ends."""
        self._names = names
        self._target = ""
        self._checked = 0
        self._has_default = False

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self._is_environ(target.value):
                self._note_given(target.slice)
            else:
                self.visit(target)
        self._target = plain_name(node.targets[0]) or ""
        self.visit(node.value)
        self._target = ""

    def visit_If(self, node: ast.If) -> None:
        if any(_ends(each, self._names) for each in node.body):
            self.demanded |= set(self._missed(node.test))
        self._visit_test(node.test)
        for child in (*node.body, *node.orelse):
            self.visit(child)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_test(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_Assert(self, node: ast.Assert) -> None:
        if (name := plain_name(node.test)) is not None:
            self.demanded.add(name)
        self._visit_test(node.test)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        is_or = isinstance(node.op, ast.Or)
        for place, value in enumerate(node.values):
            had, self._has_default = self._has_default, self._has_default or (is_or and place < len(node.values) - 1)
            self.visit(value)
            self._has_default = had
            if place < len(node.values) - 1:
                self._note_tested(value)

    def visit_Compare(self, node: ast.Compare) -> None:
        is_asked = isinstance(node.ops[0], ast.In | ast.NotIn) and self._is_environ(node.comparators[0])
        name = self._names.value_of(node.left, self._function).value if is_asked else None
        if isinstance(name, str):
            self.asked.add(name)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._is_environ(node.value) and isinstance(node.ctx, ast.Load):
            self._note_read(node.slice, node.lineno, is_required=True, has_default=False)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._names.dotted(node.func)
        if name in ENVIRONMENT_CALLS and node.args:
            has_default = len(node.args) > 1 or bool(node.keywords)
            self._note_read(node.args[0], node.lineno, is_required=False, has_default=has_default)
        elif name in ("os.environ.setdefault", "os.putenv") and node.args:
            self._note_given(node.args[0])
        elif name == "os.environ.update":
            for value in self._given_at_once(node):
                self.given.add(value)
        self.generic_visit(node)

    # -- notes ---------------------------------------------------------------------------------------

    def _is_environ(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name | ast.Attribute) and self._names.dotted(node) == "os.environ"

    def _visit_test(self, test: ast.expr) -> None:
        self._checked += 1
        self._note_tested(test)
        self.visit(test)
        self._checked -= 1

    def _note_tested(self, test: ast.expr) -> None:
        for each in ast.walk(test):
            if isinstance(each, ast.Name | ast.Attribute) and (name := plain_name(each)) is not None:
                self.tested.add(name)

    def _missed(self, test: ast.expr) -> Iterator[str]:
        """Yield what is not there where a test holds: `not x`, `x is None`, `"X" not in os.environ`."""
        match test:
            case ast.UnaryOp(op=ast.Not()) if (name := plain_name(test.operand)) is not None:
                yield name
            case ast.Compare(ops=[ast.Is()]) if (name := plain_name(test.left)) is not None:
                yield name
            case ast.Compare(ops=[ast.NotIn()]) if self._is_environ(test.comparators[0]):
                yield str(self._names.value_of(test.left, self._function).value)
            case ast.BoolOp(op=ast.Or()):
                for each in test.values:
                    yield from self._missed(each)

    def _note_given(self, key: ast.expr) -> None:
        if isinstance(name := self._names.value_of(key, self._function).value, str):
            self.given.add(name)

    def _given_at_once(self, node: ast.Call) -> Iterator[str]:
        keywords, _ = self._names.keywords_of(node, self._function)
        yield from keywords
        first = self._names.value_of(node.args[0], self._function).value if node.args else {}
        yield from map(str, first if isinstance(first, dict) else {})

    def _note_read(self, key: ast.expr, line: int, *, is_required: bool, has_default: bool) -> None:
        name = self._names.value_of(key, self._function).value
        if not isinstance(name, str):
            return
        self.found.append(
            EnvironmentRead(
                name, line, has_default or (self._has_default and not is_required), is_required,
                is_checked=bool(self._checked and not is_required) or bool(self._tries), target=self._target,
            )
        )  # fmt: skip


def _ends(node: ast.stmt, names: Names) -> bool:
    if isinstance(node, ast.Raise):
        return True
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call and names.dotted(node.value.func) in ("sys.exit", "exit", "quit", "os._exit")  # type: ignore[attr-defined]

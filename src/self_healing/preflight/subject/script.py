"""A Python script, parsed and never run: its imports, its calls and what their arguments are, as far as that can be known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import InputError
from .folding import Names
from .values import Value

LARGEST_BYTES = 4 << 20
_HEADER = re.compile(r"(?m)^# /// script\s*$\n(?P<body>(?:^#(?: .*)?$\n?)+?)^# ///\s*$")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module or name."""

    module: str
    """`trl` or `transformers.trainer_utils`; of `from . import x` it begins with a dot."""
    name: str
    """What is taken from it; empty for `import x`."""
    line: int
    is_guarded: bool
    """Inside `try` or under a condition: the script may do without it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    name: str
    """With what is imported resolved: `subprocess.run`, `trl.SFTConfig`, `model.save_pretrained`."""
    arguments: tuple[Value, ...]
    keywords: Mapping[str, Value]
    """Also those of a dict literal that is unpacked."""
    has_unknown_keywords: bool
    """Something is unpacked into it that is not known."""
    line: int
    end_line: int
    is_guarded: bool
    """Inside `try`."""
    function: str
    """The function it stands in; empty at the top."""
    node: ast.Call = field(repr=False, compare=False)

    @property
    def last(self) -> str:
        """The last part of its name: `SFTConfig`, `from_pretrained`."""
        return self.name.rpartition(".")[2]

    def given(self, place: int, name: str) -> Value | None:
        """Return an argument by its position or name."""
        if name in self.keywords:
            return self.keywords[name]
        return self.arguments[place] if 0 <= place < len(self.arguments) else None


@dataclass(frozen=True, slots=True)
class Script:
    """A script."""

    path: Path
    named: str
    """As the user named it."""
    text: str
    tree: ast.Module = field(repr=False, compare=False)
    imports: tuple[Import, ...]
    calls: tuple[Call, ...]
    """In the order of the text."""
    header: str | None
    """The content of the PEP 723 block, a TOML text; None where there is none."""
    header_line: int
    names: Names = field(repr=False, compare=False)
    """For checks that have to know the value of another expression."""

    def calls_of(self, *last: str) -> Iterator[Call]:
        """Yield the calls of functions and classes by the last part of their names."""
        return (call for call in self.calls if call.last in last)


def read_script(path: Path, named: str, flags: Mapping[str, object] | None = None) -> Script:
    """Return a script that was read; `flags` are those of the command that starts it.

    Raises:
        InputError: it cannot be read, or is no Python.

    """
    try:
        if not path.is_file():
            raise InputError(f"{named}: there is no such file" if not path.exists() else f"{named}: is no regular file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{named}: cannot be read ({error.strerror})") from error
    if len(raw) > LARGEST_BYTES:
        raise InputError(f"{named}: has more than {LARGEST_BYTES:,} bytes, so it is hardly a script")
    return parse_script(raw, path, named, flags)


def parse_script(raw: bytes, path: Path, named: str, flags: Mapping[str, object] | None = None) -> Script:
    """Return a script of its text.

    Raises:
        InputError: it is no Python.

    """
    try:
        tree = ast.parse(raw, filename=named)
        text = raw.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    except SyntaxError as error:
        raise InputError(f"{named}:{error.lineno or 1}: is not Python of this version: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; brackets nested without end
        raise InputError(f"{named}: is not Python: {error}") from error
    header = _HEADER.search(text)
    body = None if header is None else "\n".join(line[2:] for line in header["body"].splitlines())
    names = Names(tree, text, flags or {})
    try:
        walk = _Walk(names)
        walk.visit(tree)
    except RecursionError as error:
        raise InputError(f"{named}: is nested too deeply to be read") from error
    return Script(
        path=path, named=named, text=text, tree=tree, imports=tuple(walk.imports), calls=tuple(walk.calls), header=body,
        header_line=0 if header is None else text.count("\n", 0, header.start()) + 1, names=names,
    )  # fmt: skip


class _Walk(ast.NodeVisitor):
    """Gathers imports and calls in the order of the text."""

    def __init__(self, names: Names) -> None:
        self.imports: list[Import] = []
        self.calls: list[Call] = []
        self._names = names
        self._tries = 0
        self._conditions = 0
        self._functions: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:  # named by ast
        guarded = bool(self._tries or self._conditions)
        self.imports += [Import(alias.name, "", node.lineno, guarded) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        guarded = bool(self._tries or self._conditions)
        self.imports += [Import(module, alias.name, node.lineno, guarded) for alias in node.names]

    def visit_Try(self, node: ast.Try) -> None:
        self._tries += 1
        for child in node.body:
            self.visit(child)
        self._tries -= 1
        after: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
        for each in after:
            self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        is_main = isinstance(node.test, ast.Compare) and "__main__" in ast.dump(node.test)
        self._conditions += not is_main
        for child in (*node.body, *node.orelse):
            self.visit(child)
        self._conditions -= not is_main

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        function = self._functions[-1] if self._functions else ""
        keywords, has_unknown = self._names.keywords_of(node, function)
        self.calls.append(
            Call(
                name=self._names.dotted(node.func), keywords=keywords, has_unknown_keywords=has_unknown,
                arguments=tuple(self._names.value_of(argument, function) for argument in node.args),
                line=node.lineno, end_line=node.end_lineno or node.lineno, is_guarded=bool(self._tries), function=function,
                node=node,
            )
        )  # fmt: skip
        self.generic_visit(node)

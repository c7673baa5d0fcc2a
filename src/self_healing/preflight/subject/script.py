"""A Python script, parsed and never run: its imports, its calls and what their arguments are, as far as that can be known."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.errors import InputError
from .environment import EnvironmentRead, environment_reads
from .files import read_bytes, text_of_script
from .folding import Names
from .gathering import is_main_guard
from .parsing import parsed
from .values import UNKNOWN, Value
from .visiting import Visitor

LARGEST_BYTES = 256 << 10
MOST_NODES = 60_000
"""Of the syntax tree, some five thousand lines: more would take long, and is no script of anybody."""
_HEADER_BEGINS, _HEADER_ENDS = "# /// script", "# ///"
SUBPROCESS_CALLS = frozenset(
    "subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen subprocess.getoutput "
    "subprocess.getstatusoutput os.system os.popen".split()
)


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
class SetAttribute:
    """An attribute that is set after its object was made: `args.learning_rate = 1e-3`, `tokenizer.pad_token = ...`."""

    target: str
    """The object as it is written: `args`, `model.config`."""
    name: str
    value: Value
    """UNKNOWN also where it is set under a condition."""
    line: int
    is_sure: bool
    """Set under no condition."""
    maker: str
    """What made the object, with what is imported resolved: `trl.SFTConfig`; empty where that is not known."""
    function: str


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
    attributes: tuple[SetAttribute, ...] = ()
    environment: tuple[EnvironmentRead, ...] = ()
    """The variables of the environment that it reads."""

    def calls_of(self, *last: str) -> Iterator[Call]:
        """Yield the calls of functions and classes by the last part of their names."""
        return (call for call in self.calls if call.last in last)

    def subprocess_calls(self) -> Iterator[Call]:
        """Yield the calls that start other programs."""
        return (call for call in self.calls if call.name in SUBPROCESS_CALLS)

    def maker_of(self, call: Call, name: str, place: int = -1) -> str:
        """Return what made an argument of a call: of `SFTTrainer(args=config)` it is `trl.SFTConfig`; empty if unknown."""
        nodes = {each.arg: each.value for each in call.node.keywords}
        node = nodes.get(name) or (call.node.args[place] if 0 <= place < len(call.node.args) else None)
        made = self.names.maker_of(node, call.function) if node is not None else None
        return made.maker if made is not None else ""


def read_script(
    path: Path, named: str, flags: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Script:
    """Return a script that was read.

    Args:
        path: Where it is.
        named: As the user named it.
        flags: Those of the command that starts it.
        environ: What the command or the job sets.

    Raises:
        InputError: it cannot be read, or is no Python.

    """
    return parse_script(read_bytes(path, named, "a script", LARGEST_BYTES), path, named, flags, environ)


def parse_script(
    raw: bytes,
    path: Path,
    named: str,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Script:
    """Return a script of its text.

    Raises:
        InputError: it is no Python.

    """
    text = text_of_script(raw, named)
    try:
        tree = _tree_of(text, named)
        names = Names(tree, text, flags or {}, environ)
        walk = _Walk(names)
        walk.visit(tree)
        attributes = tuple(_attributes(names))
        environment = environment_reads(tree, names)
    except SyntaxError as error:
        raise InputError(f"{named}:{error.lineno or 1}: is not Python of this version: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{named}: is nested too deeply to be read") from error
    except (ValueError, MemoryError) as error:  # null bytes; brackets nested without end
        if isinstance(error, InputError):
            raise
        raise InputError(f"{named}: is not Python: {error or 'it is nested too deeply'}") from error
    header, header_line = _header(text)
    return Script(
        path=path, named=named, text=text, tree=tree, imports=tuple(walk.imports), calls=tuple(walk.calls), header=header,
        header_line=header_line, names=names, attributes=attributes, environment=environment,
    )  # fmt: skip


def _tree_of(text: str, named: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in texts: they are the script's own
        tree: ast.Module = parsed(text, named)
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise InputError(f"{named}: is longer than what is written by hand, so it is not looked at")
    return tree


def _header(text: str) -> tuple[str | None, int]:
    """Return the PEP 723 block and its line; it ends at the last `# ///` of the comment that it begins."""
    lines = text.split("\n")
    first = next((place for place, line in enumerate(lines) if line.rstrip() == _HEADER_BEGINS), None)
    if first is None:
        return None, 0
    last = None
    for place in range(first + 1, len(lines)):
        line = lines[place].rstrip()
        if line != "#" and not line.startswith("# "):
            break
        if line == _HEADER_ENDS:
            last = place
    if last is None:
        return None, 0
    return "\n".join(line[2:] for line in lines[first + 1 : last]), first + 1


def _attributes(names: Names) -> Iterator[SetAttribute]:
    found = [each for places in names.gathered.attributes.values() for each in places]
    for each in sorted(found, key=lambda each: each.line):
        made = names.maker_of(each.object, each.function)
        value = names.value_of(each.value, each.function) if each.value is not None else Value(UNKNOWN, "", each.line)
        yield SetAttribute(
            target=each.target, name=each.name, line=each.line, is_sure=each.is_sure, function=each.function,
            value=value if each.is_sure else Value(UNKNOWN, value.text, value.line), maker=made.maker if made is not None else "",
        )  # fmt: skip


class _Walk(Visitor, ast.NodeVisitor):  # the second is there already; the linter knows the names of its methods
    """Gathers imports and calls in the order of the text."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self.imports: list[Import] = []
        self.calls: list[Call] = []
        self._names = names
        self._conditions = 0

    def visit_Import(self, node: ast.Import) -> None:  # named by ast
        guarded = bool(self._tries or self._conditions)
        self.imports += [Import(alias.name, "", node.lineno, guarded) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        guarded = bool(self._tries or self._conditions)
        self.imports += [Import(module, alias.name, node.lineno, guarded) for alias in node.names]

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        is_main = is_main_guard(node)
        self._conditions += not is_main
        for child in (*node.body, *node.orelse):
            self.visit(child)
        self._conditions -= not is_main

    def visit_Call(self, node: ast.Call) -> None:
        function = self._function
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

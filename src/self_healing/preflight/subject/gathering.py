"""What a script says about its names: where they are assigned, changed, imported, and which functions are called how."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto

_CHANGING = frozenset({"append", "extend", "insert", "remove", "pop", "popitem", "clear", "update", "setdefault"})
_REORDERING = frozenset({"sort", "reverse"})
MOST = 100
"""What is assigned or changed more often is not followed: nobody's settings are, and it would take long."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One assignment to a name."""

    value: ast.expr | None
    """None for what is assigned in a way that is not known: a loop, `+=`, an argument."""
    line: int
    is_sure: bool
    """Under no condition, in no loop and no `try`: it happens once whenever its lines are reached."""
    element: int | None = None
    """Which part of the value, where several names are assigned at once."""


class How(Enum):
    """How something is changed."""

    SET = auto()
    UPDATE = auto()
    APPEND = auto()
    DROP = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a dict or list that has a name: `cfg["lr"] = 1`."""

    how: How
    key: ast.expr | None
    value: ast.expr | ast.Call | None
    line: int
    is_sure: bool
    function: str
    """Where it happens."""


@dataclass(frozen=True, slots=True)
class AttributeSet:
    """One attribute that is set from outside: `args.learning_rate = 1e-3`."""

    target: str
    """The name of the object: `args`, `model.config`."""
    name: str
    value: ast.expr | None
    line: int
    is_sure: bool
    function: str
    object: ast.expr


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function."""

    place: int
    """-1 for one that is given by name only."""
    default: ast.expr | None
    annotation: ast.expr | None


class Gathered:
    """Everything that one pass over a script finds; scopes are functions by name, and `Name.` for the body of a class."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}
        self.stars: list[str] = []
        """Modules of which everything is imported."""
        self.assigned: dict[tuple[str, str], list[Assignment]] = defaultdict(list)
        self.changes: dict[tuple[str, str], list[Change]] = defaultdict(list)
        self.attributes: dict[tuple[str, str], list[AttributeSet]] = defaultdict(list)
        """By the name of the object and of the attribute."""
        self.parameters: dict[tuple[str, str], Parameter] = {}
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.twice: set[str] = set()
        """Functions that several have the name of, such as methods: their arguments are not known."""
        self.outer: dict[str, str] = {}
        """The function that a function stands in."""
        self.classes: dict[str, ast.ClassDef] = {}
        self.calls: dict[str, list[tuple[ast.Call, str]]] = defaultdict(list)
        """By the plain name of what is called, with the function they stand in."""
        self.options: dict[str, ast.expr | None] = {}
        """Of argparse: their defaults."""
        self.mentions: dict[str, int] = defaultdict(int)
        self._otherwise: list[tuple[str, str, Assignment]] = []
        """Names that an import, a function or a class gives, by scope."""
        self._walk(tree, "", sure=True)
        for scope, name, bound in self._otherwise:  # where it is assigned too, that is not the only one that counts
            if (scope, name) in self.assigned:
                self.assigned[scope, name] = sorted([*self.assigned[scope, name], bound], key=lambda each: each.line)

    def _walk(self, node: ast.AST, scope: str, *, sure: bool) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import() | ast.ImportFrom():
                    self._take_import(child)
                    for alias in child.names:
                        self._take_otherwise(alias.asname or alias.name.partition(".")[0], child, scope, sure=sure)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._take_function(child, scope)
                    self._take_otherwise(child.name, child, scope, sure=sure)
                    self._walk(child, child.name, sure=True)
                    continue
                case ast.ClassDef():
                    self.classes[child.name] = child
                    self._take_otherwise(child.name, child, scope, sure=sure)
                    self._walk(child, f"{child.name}.", sure=True)
                    continue
                case ast.If():
                    self._walk(child, scope, sure=sure and is_main_guard(child))
                    continue
                case ast.For() | ast.AsyncFor() | ast.While() | ast.Try() | ast.Match() | ast.comprehension():
                    self._take_assignment(child, scope, sure=False)
                    self._walk(child, scope, sure=False)
                    continue
                case ast.Call():
                    self._take_call(child, scope, sure=sure)
                case ast.Name():
                    self.mentions[child.id] += 1
                case _:
                    self._take_assignment(child, scope, sure=sure)
            self._walk(child, scope, sure=sure)

    def _take_otherwise(self, name: str, node: ast.stmt, scope: str, *, sure: bool) -> None:
        self._otherwise.append((scope, name, Assignment(None, node.lineno, sure)))

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                self.imported[name] = alias.name if alias.asname else name
            elif node.level == 0 and alias.name == "*":
                self.stars.append(node.module or "")
            elif node.level == 0:
                self.imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _take_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str) -> None:
        if node.name in self.functions:
            self.twice.add(node.name)
        self.functions[node.name] = node
        self.outer[node.name] = "" if scope.endswith(".") or scope == node.name else scope
        given = node.args
        by_place = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(by_place) - len(given.defaults)) + list(given.defaults)
        for place, (argument, default) in enumerate(zip(by_place, defaults, strict=True)):
            self.parameters[node.name, argument.arg] = Parameter(place, default, argument.annotation)
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
            self.parameters[node.name, argument.arg] = Parameter(-1, default, argument.annotation)
        for rest in (given.vararg, given.kwarg):
            if rest is not None:
                self.assigned[node.name, rest.arg].append(Assignment(None, node.lineno, is_sure=False))

    # -- assignments and changes ----------------------------------------------------------------------

    def _take_assignment(self, node: ast.AST, scope: str, *, sure: bool) -> None:
        match node:
            case ast.Assign():
                for target in node.targets:
                    self._take_target(target, node.value, scope, sure=sure)
            case ast.AnnAssign() | ast.NamedExpr():
                if node.value is not None:
                    self._take_target(node.target, node.value, scope, sure=sure)
            case ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
                self._take_target(node.target, None, scope, sure=sure)
            case ast.withitem() if node.optional_vars is not None:
                self._take_target(node.optional_vars, None, scope, sure=sure)
            case _:
                self._take_other(node, scope, sure=sure)

    def _take_other(self, node: ast.AST, scope: str, *, sure: bool) -> None:
        if isinstance(node, ast.Global | ast.Nonlocal):
            where = self.outer.get(scope, "") if isinstance(node, ast.Nonlocal) else ""
            for name in node.names:
                self.assigned[where, name].append(Assignment(None, node.lineno, is_sure=False))
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            self.assigned[scope, node.name].append(Assignment(None, node.lineno, is_sure=False))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    self._take_change(target.value, Change(How.DROP, target.slice, None, target.lineno, sure, scope))

    def _take_target(
        self, target: ast.expr, value: ast.expr | None, scope: str, *, sure: bool, element: int | None = None
    ) -> None:
        line = target.lineno
        match target:
            case ast.Name():
                self.assigned[scope, target.id].append(Assignment(value, line, sure, element))
            case ast.Tuple() | ast.List():
                same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
                for place, each in enumerate(target.elts):
                    if same and isinstance(value, ast.Tuple | ast.List):
                        self._take_target(each, value.elts[place], scope, sure=sure)
                    else:
                        self._take_target(each, value, scope, sure=sure, element=place)
            case ast.Starred():
                self._take_target(target.value, None, scope, sure=sure)
            case ast.Subscript():
                how = How.SET if element is None else How.UNKNOWN
                self._take_change(target.value, Change(how, target.slice, value, line, sure, scope))
            case ast.Attribute() if (name := plain_name(target.value)) is not None:
                given = value if element is None else None
                made = AttributeSet(name, target.attr, given, line, sure, scope, target.value)
                self.attributes[name, target.attr].append(made)

    def _take_change(self, target: ast.expr, change: Change) -> None:
        if isinstance(target, ast.Name):
            self.changes[self._scope_of(target.id, change.function), target.id].append(change)
        elif isinstance(target, ast.Subscript):  # something inside of it
            unknown = Change(How.UNKNOWN, None, None, change.line, change.is_sure, change.function)
            self._take_change(target.value, unknown)

    def _scope_of(self, name: str, scope: str) -> str:
        while scope and (scope, name) not in self.assigned and (scope, name) not in self.parameters:
            scope = self.outer.get(scope, "")
        return scope

    # -- calls ----------------------------------------------------------------------------------------

    def _take_call(self, node: ast.Call, scope: str, *, sure: bool) -> None:
        if isinstance(node.func, ast.Name):
            self.calls[node.func.id].append((node, scope))
        elif isinstance(node.func, ast.Attribute):
            name = node.func.attr
            self.calls[name].append((node, scope))
            if name == "add_argument":
                self._take_option(node)
            elif name in _CHANGING | _REORDERING:
                self._take_changing(node, node.func, scope, sure=sure)

    def _take_changing(self, node: ast.Call, called: ast.Attribute, scope: str, *, sure: bool) -> None:
        how = How.UNKNOWN
        key: ast.expr | None = None
        value: ast.expr | None = None
        first: ast.expr | None = node.args[0] if node.args else None
        if called.attr == "update" and len(node.args) <= 1:
            how, value = How.UPDATE, node
        elif called.attr == "append" and first is not None:
            how, value = How.APPEND, first
        elif called.attr == "pop" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            how, key = How.DROP, first
        self._take_change(called.value, Change(how, key, value, node.lineno, sure, scope))

    def _take_option(self, node: ast.Call) -> None:
        flags = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        given = {each.arg: each.value for each in node.keywords}
        named = given.get("dest")
        name = named.value if isinstance(named, ast.Constant) else next((f for f in flags if f.startswith("--")), "")
        if not isinstance(name, str) or not name:
            return
        action = given.get("action")
        switch = action.value if isinstance(action, ast.Constant) else None
        default = given.get("default")
        if default is None and switch in ("store_true", "store_false"):
            default = ast.Constant(value=switch == "store_false", lineno=node.lineno, col_offset=node.col_offset)
        plain = name.lstrip("-").replace("-", "_")
        self.options[plain] = None if plain in self.options else default


def returned_by(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """Return what a function gives back, where it does so in one place, at its end; None for any other."""
    if isinstance(node, ast.AsyncFunctionDef) or node.decorator_list or not isinstance(node.body[-1], ast.Return):
        return None
    inner: list[ast.AST] = list(node.body[:-1])
    while inner:
        each = inner.pop()
        if isinstance(each, ast.Return | ast.Yield | ast.YieldFrom):
            return None
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            inner += ast.iter_child_nodes(each)
    return node.body[-1].value


def plain_name(node: ast.expr) -> str | None:
    """Return `a` or `a.b.c`; None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def is_main_guard(node: ast.If) -> bool:
    """Say whether this is `if __name__ == "__main__"`."""
    test = node.test
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"

"""What made an object: `SFTConfig(...)`, a dataclass that HfArgumentParser, TrlParser or tyro fills, an argparse namespace."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from .gathering import MOST, Assignment, Gathered, Parameter, returned_by

DEEPEST = 40
"""Names that lead to each other."""
_FILLED = frozenset({"parse_args_into_dataclasses", "parse_args_and_config"})
_FILLED_FROM_FILES = frozenset({"parse_dict", "parse_yaml_file", "parse_json_file"})
_LOADED = frozenset({"from_pretrained", "from_config", "from_dict", "from_json_file"})
_CLI = frozenset({"tyro.cli", "simple_parsing.parse", "draccus.parse", "pyrallis.parse", "jsonargparse.CLI", "chz.entrypoint"})  # fmt: skip
_RUNS = frozenset({"typer.run", "fire.Fire", "tyro.cli", "jsonargparse.CLI", "defopt.run", "chz.entrypoint"})
_COMMANDS = frozenset({"command", "callback", "run"})
_AS_DICT = frozenset({"dataclasses.asdict", "attrs.asdict", "attr.asdict", "vars"})
_DICT_OF_ITSELF = (".model_dump", ".dict", "._asdict")
NAMESPACE = "argparse.Namespace"
_PLAIN_BASES = frozenset({"object", "BaseModel", "NamedTuple", "Struct"})
"""Of which an object has no fields but its own."""


@dataclass(frozen=True, slots=True)
class Made:
    """How an object came to be."""

    maker: str
    """The class, with what is imported resolved: `trl.SFTConfig`."""
    call: ast.Call | None
    """What makes it; None where a parser does."""
    function: str
    """Where."""
    is_filled: bool = False
    """From the command line."""
    is_known: bool = True
    """What is not given has its default; not where a file that is not known fills it."""

    @property
    def last(self) -> str:
        """The class without its module."""
        return self.maker.rpartition(".")[2]


class Makers:
    """Finds what made the objects of one script."""

    def __init__(self, gathered: Gathered, dotted: Callable[[ast.expr], str]) -> None:
        self._gathered = gathered
        self._dotted = dotted
        self.commands = self._find_commands()

    def made_by(self, node: ast.expr | None, function: str, depth: int = 0, element: int | None = None) -> Made | None:
        """Return how the object that an expression stands for was made; None where that is not known."""
        if node is None or depth > DEEPEST:
            return None
        match node:
            case ast.Name():
                if (found := self.assignment(node, function)) is not None:
                    chosen, scope = found
                    return self.made_by(chosen.value, scope, depth + 1, chosen.element)
                return self._of_parameter(node.id, function, depth + 1)
            case ast.Call():
                return self._of_call(node, function, depth + 1, element)
            case ast.Subscript() if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return self.made_by(node.value, function, depth + 1, node.slice.value)
        return None

    def assignment(self, node: ast.Name, function: str) -> tuple[Assignment, str] | None:
        """Return the assignment that gives a name its value where it is used; None where that is not one alone."""
        for scope in self.scopes(function):
            assigned = self._gathered.assigned.get((scope, node.id), [])
            if (scope, node.id) in self._gathered.parameters and assigned:
                return None
            if len(assigned) == 1:
                return assigned[0], scope
            if len(assigned) > MOST:
                return None
            if assigned:
                is_inner = scope == "" and function != ""  # what stands at the top has been run when a function is
                before = [each for each in assigned if is_inner or each.line < node.lineno]
                is_plain = (scope == function or is_inner) and all(each.is_sure for each in assigned)
                return (before[-1], scope) if is_plain and before else None
            if (scope, node.id) in self._gathered.parameters:
                return None
        return None

    def scopes(self, function: str) -> list[str]:
        """Return where a name is looked for, the nearest first."""
        found = [function]
        while found[-1] and len(found) < DEEPEST:
            found.append(self._gathered.outer.get(found[-1], ""))
        return list(dict.fromkeys([*found, ""]))

    def argument(self, name: str, function: str) -> tuple[ast.expr | None, str] | None:
        """Return what a parameter is given where its function is called once, and where that stands."""
        for scope in self.scopes(function):
            parameter = self._gathered.parameters.get((scope, name))
            if parameter is None:
                continue
            calls = self._gathered.calls.get(scope, [])
            if scope in self._gathered.twice or len(calls) != 1 or self._gathered.mentions[scope] != 1:
                return None
            call, where = calls[0]
            return self._given(call, name, parameter), where
        return None

    def returned(self, call: ast.Call) -> tuple[ast.expr, str] | None:
        """Return what a function of this script gives back to a call, and the function; None where that is not one expression."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        node = self._gathered.functions.get(name)
        is_hidden = (
            name in self._gathered.twice or name in self._gathered.imported or ("", name) in self._gathered.assigned
        )
        value = returned_by(node) if node is not None and not is_hidden else None
        return (value, name) if value is not None else None

    def fields_of(self, made: Made) -> list[str] | None:
        """Return the names of what an object holds; None where a class that is not in this script may add others."""
        if made.maker == NAMESPACE:
            return list(self._gathered.options)
        found: dict[str, None] = {}
        classes, owner = self._gathered.classes, made.maker
        while owner in classes and len(found) < MOST:
            body = classes[owner].body
            found |= {
                each.target.id: None
                for each in body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            bases = [self._dotted(base) for base in classes[owner].bases]
            if not bases or bases[0].rpartition(".")[2] in _PLAIN_BASES:
                return list(found)
            owner = bases[0] if len(bases) == 1 and bases[0] != owner else ""
        return None

    def _given(self, call: ast.Call, name: str, parameter: Parameter) -> ast.expr | None:
        by_name = {each.arg: each.value for each in call.keywords}
        if name in by_name:
            return by_name[name]
        if None in by_name or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        return call.args[parameter.place] if 0 <= parameter.place < len(call.args) else parameter.default

    def _of_parameter(self, name: str, function: str, depth: int) -> Made | None:
        found = self.argument(name, function)
        if found is not None and (made := self.made_by(found[0], found[1], depth)) is not None:
            return made
        if found is not None and isinstance(found[0], ast.Starred):
            return None
        for scope in self.scopes(function):
            parameter = self._gathered.parameters.get((scope, name))
            if parameter is not None and isinstance(parameter.annotation, ast.Name | ast.Attribute):
                is_filled = scope in self.commands
                return Made(self._dotted(parameter.annotation), None, scope, is_filled, is_known=is_filled)
        return None

    def _of_call(self, node: ast.Call, function: str, depth: int, element: int | None) -> Made | None:
        if (returned := self.returned(node)) is not None:
            value, scope = returned
            if element is not None and isinstance(value, ast.Tuple):
                value, element = (value.elts[element] if element < len(value.elts) else value), None
            return self.made_by(value, scope, depth, element)
        name = self._dotted(node.func)
        last = name.rpartition(".")[2]
        if last in ("parse_args", "parse_known_args"):
            return Made(NAMESPACE, None, function, is_filled=True) if element in (None, 0) else None
        if last in _FILLED | _FILLED_FROM_FILES and isinstance(node.func, ast.Attribute):
            classes = self._parsed_classes(node.func.value, function, depth)
            place = element or 0
            if not 0 <= place < len(classes):
                return None
            return Made(classes[place], None, function, is_filled=True, is_known=last in _FILLED)
        if name in _CLI:
            wanted = next((each.value for each in node.keywords if each.arg == "config_class"), None)
            wanted = node.args[0] if node.args else wanted
            return Made(self._dotted(wanted), None, function, is_filled=True) if wanted is not None else None
        if last in _LOADED and element is None:
            return Made(name.rpartition(".")[0], node, function, is_known=False)
        if element is None and last[:1].isupper():
            return Made(name, node, function)
        return None

    def _parsed_classes(self, parser: ast.expr, function: str, depth: int) -> list[str]:
        """Return the classes that `HfArgumentParser((A, B))` reads."""
        made = self.made_by(parser, function, depth)
        if made is None or made.call is None:
            return []
        given = {each.arg: each.value for each in made.call.keywords}
        classes = made.call.args[0] if made.call.args else given.get("dataclass_types")
        if isinstance(classes, ast.Name) and classes.id not in self._gathered.classes:
            found = self.assignment(classes, made.function)
            classes = found[0].value if found is not None else classes
        if isinstance(classes, ast.Tuple | ast.List):
            return [self._dotted(each) for each in classes.elts]
        return [self._dotted(classes)] if classes is not None else []

    def _find_commands(self) -> frozenset[str]:
        """Return the functions whose parameters are options of the command line: of typer, click, fire, tyro."""
        found = set()
        for name, node in self._gathered.functions.items():
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                is_command = isinstance(called, ast.Attribute) and called.attr in _COMMANDS
                if is_command or self._dotted(called).startswith("click."):
                    found.add(name)
        for calls in self._gathered.calls.values():
            for call, _ in calls:
                if self._dotted(call.func) in _RUNS and call.args and isinstance(call.args[0], ast.Name):
                    found.add(call.args[0].id)
        return frozenset(found & self._gathered.functions.keys())


def turned_to_dict(call: ast.Call, name: str) -> ast.expr | None:
    """Return the object that a call makes a dict of: `asdict(settings)`, `vars(args)`, `settings.model_dump()`."""
    if name in _AS_DICT and len(call.args) == 1:
        return call.args[0]
    is_own = (
        isinstance(call.func, ast.Attribute) and not call.args and not call.keywords and name.endswith(_DICT_OF_ITSELF)
    )
    return call.func.value if is_own and isinstance(call.func, ast.Attribute) else None

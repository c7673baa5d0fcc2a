"""What names and expressions of a script stand for, as far as that can be known without running it.

A name is its value where one assignment alone can have given it, be it under a condition; one that is assigned several times,
one of them under a condition or in a loop, or from anything that is not known here is unknown. Options of argparse, typer and click and fields of dataclasses that are read from
the command line are what the command gives them, or their defaults; likewise variables of the environment.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from .arithmetic import calculated, compared
from .gathering import MOST, AttributeSet, Change, Gathered, How, plain_name
from .makers import DEEPEST, NAMESPACE, Made, Makers, turned_to_dict
from .source import Source
from .values import UNKNOWN, Value

ENVIRONMENT_CALLS = frozenset({"os.environ.get", "os.getenv"})
_PATHS = frozenset({"os.path.join", "pathlib.Path", "Path", "pathlib.PurePath"})
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}
_OPTIONS = frozenset({"typer.Option", "typer.Argument"})
_NAMESPACES = frozenset({NAMESPACE, "types.SimpleNamespace", "SimpleNamespace"})
LARGEST = 10_000
"""Values with more parts than that are nobody's setting, and names that stand for twice each other grow fast."""


class Names:
    """The names of one script."""

    def __init__(
        self, tree: ast.Module, text: str, flags: Mapping[str, object], environ: Mapping[str, str] | None = None
    ) -> None:
        self._source = Source(text)
        self._flags = {name.replace("-", "_"): value for name, value in flags.items()}
        self._environ = environ or {}
        self.gathered = Gathered(tree)
        self.makers = Makers(self.gathered, self.dotted)
        self._known: dict[tuple[int, str], object] = {}
        self._sizes: dict[int, int] = {}
        self._kept: list[object] = []
        """So that no other value gets the id of one whose size is noted."""
        self._folds: dict[type[ast.expr], Callable[[Any, str, int], object]] = {
            ast.Name: self._fold_name, ast.Attribute: self._fold_attribute, ast.List: self._fold_several_values,
            ast.Tuple: self._fold_several_values, ast.Set: self._fold_several_values, ast.Dict: self._fold_dict,
            ast.UnaryOp: self._fold_operation, ast.BinOp: self._fold_operation, ast.BoolOp: self._fold_choice,
            ast.IfExp: self._fold_choice, ast.Compare: self._fold_comparison, ast.JoinedStr: self._fold_text,
            ast.Subscript: self._fold_part, ast.Call: self._fold_result,
        }  # fmt: skip

    def dotted(self, node: ast.expr) -> str:
        """Return the name of a function or attribute with what is imported resolved."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute | ast.Call):
            if isinstance(node, ast.Attribute):
                parts.append(node.attr)
                node = node.value
                continue
            node = node.func
            if isinstance(node, ast.Attribute):
                parts.append(f"{node.attr}()")
                node = node.value
            elif isinstance(node, ast.Name):
                parts.append(f"{self._resolved(node.id)}()")
                return ".".join(reversed(parts))
        parts.append(self._resolved(node.id) if isinstance(node, ast.Name) else "?")
        return ".".join(reversed(parts))

    def _resolved(self, name: str) -> str:
        found = self.gathered
        if name in found.imported:
            return found.imported[name]
        is_own = name in found.functions or name in found.classes or ("", name) in found.assigned
        if len(found.stars) == 1 and not is_own and not hasattr(builtins, name) and name[:1].isupper():
            return f"{found.stars[0]}.{name}"
        return name

    def value_of(self, node: ast.expr, function: str = "") -> Value:
        """Return an expression and its value."""
        return Value(self._fold(node, function, 0), self._source.written(node), node.lineno)

    def keywords_of(self, call: ast.Call, function: str) -> tuple[dict[str, Value], bool]:
        """Return the keywords of a call, also of what is unpacked, and whether there may be others."""
        return self._keywords(call, function, 0)

    def maker_of(self, node: ast.expr, function: str = "") -> Made | None:
        """Return how the object that an expression stands for was made; None where that is not known."""
        return self.makers.made_by(node, function)

    def _keywords(self, call: ast.Call, function: str, depth: int) -> tuple[dict[str, Value], bool]:
        found: dict[str, Value] = {}
        has_unknown = False
        for keyword in call.keywords:
            if keyword.arg is not None:
                value = self._fold(keyword.value, function, depth)
                found[keyword.arg] = Value(value, self._source.written(keyword.value), keyword.value.lineno)
                continue
            unpacked = self._fold(keyword.value, function, depth)
            if isinstance(unpacked, dict):
                text = self._source.written(keyword.value)
                found |= {str(name): Value(value, text, keyword.value.lineno) for name, value in unpacked.items()}
            else:
                has_unknown = True
        return found, has_unknown

    # -- folding -------------------------------------------------------------------------------------

    def _fold(self, node: ast.expr | None, function: str, depth: int) -> object:
        """Return the value of an expression, or UNKNOWN; each is looked at once, and one that leads to itself ends at the depth."""
        if node is None or depth > DEEPEST:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        key = (id(node), function)
        if key in self._known:
            return self._known[key]
        value = self._bounded(fold(node, function, depth + 1)) if (fold := self._folds.get(type(node))) else UNKNOWN
        self._known[key] = value
        return value

    def _bounded(self, value: object) -> object:
        """Return a value, or UNKNOWN where it is larger than any setting is."""
        if isinstance(value, str):
            return value if len(value) <= LARGEST else UNKNOWN
        if not isinstance(value, list | tuple | dict):
            return value
        parts = value.values() if isinstance(value, dict) else value
        size = 1 + sum(self._sizes.get(id(part), 1) for part in parts)
        if size > LARGEST:
            return UNKNOWN
        self._sizes[id(value)] = size
        self._kept.append(value)
        return value

    def _fold_several_values(self, node: ast.List | ast.Tuple | ast.Set, function: str, depth: int) -> object:
        values = [self._fold(each, function, depth) for each in node.elts]
        return tuple(values) if isinstance(node, ast.Tuple) else values

    def _fold_comparison(self, node: ast.Compare, function: str, depth: int) -> object:
        if len(node.ops) != 1:
            return UNKNOWN
        left, right = self._fold(node.left, function, depth), self._fold(node.comparators[0], function, depth)
        return compared(left, node.ops[0], right)

    def _fold_name(self, node: ast.Name, function: str, depth: int) -> object:
        found = self.makers.assignment(node, function)
        if found is None:
            return self._fold_several(node, function, depth)
        chosen, scope = found
        value = self._fold(chosen.value, scope, depth)
        if chosen.element is not None:
            parts = value if isinstance(value, list | tuple) else []
            return parts[chosen.element] if chosen.element < len(parts) else UNKNOWN
        changes = self.gathered.changes.get((scope, node.id), [])
        return self._changed(value, changes, node, function, depth) if changes else value

    def _fold_several(self, node: ast.Name, function: str, depth: int) -> object:
        """Return what a name stands for that is a parameter, or is assigned the same value wherever it is assigned."""
        for scope in self.makers.scopes(function):
            assigned = self.gathered.assigned.get((scope, node.id), [])
            is_parameter = (scope, node.id) in self.gathered.parameters
            if assigned and not is_parameter and len(assigned) <= 20:
                values = [self._fold(each.value if each.element is None else None, scope, depth) for each in assigned]
                is_same = all(type(each) is type(values[0]) and each == values[0] for each in values)
                return values[0] if is_same and not self.gathered.changes.get((scope, node.id)) else UNKNOWN
            if assigned:
                return UNKNOWN
            if is_parameter:
                return self._fold_parameter(node, scope, depth)
        return UNKNOWN

    def _fold_parameter(self, node: ast.Name, scope: str, depth: int) -> object:
        value: object = UNKNOWN
        if scope in self.makers.commands:
            value = self._fold_option(node.id, scope, depth)
        elif (found := self.makers.argument(node.id, scope)) is not None:
            value = self._fold(found[0], found[1], depth)
        changes = self.gathered.changes.get((scope, node.id), [])
        return self._changed(value, changes, node, scope, depth) if changes else value

    def _fold_option(self, name: str, function: str, depth: int) -> object:
        """Return an option of typer, click, fire or tyro."""
        if name in self._flags:
            return self._flags[name]
        for decorator in self.gathered.functions[function].decorator_list:
            if isinstance(decorator, ast.Call) and self.dotted(decorator.func) in ("click.option", "click.argument"):
                words = [each.value for each in decorator.args if isinstance(each, ast.Constant)]
                if name in [str(word).lstrip("-").replace("-", "_") for word in words]:
                    return self._fold(_keyword(decorator, "default"), "", depth)
        default = self.gathered.parameters[function, name].default
        if isinstance(default, ast.Call) and self.dotted(default.func) in _OPTIONS:
            default = default.args[0] if default.args else _keyword(default, "default")
        value = self._fold(default, "", depth)
        return UNKNOWN if value is ... else value

    def _changed(self, value: object, changes: list[Change], node: ast.Name, function: str, depth: int) -> object:
        """Return a dict or list with what was done to it before it is used here."""
        if len(changes) > MOST:
            return UNKNOWN
        for change in changes:
            if change.function == function and change.line >= node.lineno:
                continue
            if not isinstance(value, dict | list):
                return UNKNOWN
            is_sure = change.is_sure and change.function in (function, "")  # the top has been run when a function is
            value = self._with_change(value, change, depth, is_sure=is_sure)
        return value

    def _with_change(
        self, value: dict[object, object] | list[object], change: Change, depth: int, *, is_sure: bool
    ) -> object:
        key = self._fold(change.key, change.function, depth)
        if isinstance(value, list):
            is_added = change.how is How.APPEND and is_sure
            return [*value, self._fold(change.value, change.function, depth)] if is_added else UNKNOWN
        if change.how is How.SET and isinstance(key, str | int | float):
            return value | {key: self._fold(change.value, change.function, depth) if is_sure else UNKNOWN}
        if change.how is How.DROP and isinstance(key, str | int | float):
            return {name: each for name, each in value.items() if name != key} if is_sure else value | {key: UNKNOWN}
        if change.how is How.UPDATE and isinstance(change.value, ast.Call):
            new = self._fold_update(change.value, change.function, depth)
            if isinstance(new, dict):
                return value | (new if is_sure else dict.fromkeys(new, UNKNOWN))
        return UNKNOWN

    def _fold_update(self, call: ast.Call, function: str, depth: int) -> object:
        found, has_unknown = self._keywords(call, function, depth)
        first = self._fold(call.args[0], function, depth) if call.args else {}
        if has_unknown or not isinstance(first, dict):
            return UNKNOWN
        return first | {name: value.value for name, value in found.items()}

    # -- attributes ----------------------------------------------------------------------------------

    def _fold_attribute(self, node: ast.Attribute, function: str, depth: int) -> object:
        target = plain_name(node.value)
        if node.attr == "__dict__":
            return self._fold_fields(node.value, function, depth)
        if target is None:
            made = self.makers.made_by(node.value, function)  # of `Settings().lr`
            return self._fold_of_object(made, node.attr, depth) if made is not None else UNKNOWN
        places = self.gathered.attributes.get((target, node.attr), [])
        if places and (is_set := self._set_before(places, node, function)) is not None:
            return self._fold(is_set.value, is_set.function, depth) if is_set.is_sure else UNKNOWN
        if target in self.gathered.classes:
            return self._fold_field(target, node.attr, depth)
        made = self.makers.made_by(node.value, function)
        if made is not None:
            return self._fold_of_object(made, node.attr, depth)
        if isinstance(node.value, ast.Name) and "arg" in node.value.id.lower():
            if node.attr in self._flags:
                return self._flags[node.attr]
            return self._fold(self.gathered.options.get(node.attr), "", depth)
        return UNKNOWN

    def _set_before(self, places: list[AttributeSet], node: ast.Attribute, function: str) -> AttributeSet | None:
        """Return the setting of an attribute that holds where it is used."""
        if len(places) > MOST or any(each.function not in (function, "") for each in places):
            only = places[0]
            return AttributeSet(only.target, only.name, None, only.line, is_sure=False, function="", object=only.object)
        before = [each for each in places if each.function != function or each.line < node.lineno]
        return before[-1] if before else None

    def _fold_of_object(self, made: Made, name: str, depth: int) -> object:
        if made.is_filled and name in self._flags:
            return self._flags[name]
        if not made.is_known:
            return UNKNOWN
        if made.maker == NAMESPACE and made.call is None:
            return self._fold(self.gathered.options.get(name), "", depth)
        if made.call is not None:
            found, has_unknown = self._keywords(made.call, made.function, depth)
            if name in found:
                return found[name].value
            if has_unknown or made.call.args or made.maker in _NAMESPACES:
                return UNKNOWN
        return self._fold_field(made.maker, name, depth)

    def _fold_fields(self, node: ast.expr, function: str, depth: int) -> object:
        """Return what an object holds as a dict: of a dataclass, of options that are parsed."""
        made = self.makers.made_by(node, function)
        names = self.makers.fields_of(made) if made is not None else None
        if names is None:
            return UNKNOWN
        each = {name: ast.copy_location(ast.Attribute(node, name, ast.Load()), node) for name in names}
        return {name: self._fold_attribute(one, function, depth) for name, one in each.items()}

    def _fold_field(self, owner: str, name: str, depth: int) -> object:
        """Return what stands in the body of a class of this script, or of one that it inherits from here."""
        for _ in range(DEEPEST):
            assigned = self.gathered.assigned.get((f"{owner}.", name), [])
            if assigned:
                value = assigned[0].value if len(assigned) == 1 else None
                if isinstance(value, ast.Call) and self.dotted(value.func).rpartition(".")[2] in ("field", "Field"):
                    value = _keyword(value, "default")
                return self._fold(value, f"{owner}.", depth)
            bases = self.gathered.classes[owner].bases if owner in self.gathered.classes else []
            owner = next((base.id for base in bases if isinstance(base, ast.Name)), "")
        return UNKNOWN

    # -- expressions ---------------------------------------------------------------------------------

    def _fold_dict(self, node: ast.Dict, function: str, depth: int) -> object:
        folded: dict[object, object] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self._fold(value, function, depth)
                if not isinstance(inner, dict):
                    return UNKNOWN
                folded |= inner
                continue
            name = self._fold(key, function, depth)
            if not isinstance(name, str | int | float | bool):
                return UNKNOWN
            folded[name] = self._fold(value, function, depth)
        return folded

    def _fold_operation(self, node: ast.UnaryOp | ast.BinOp, function: str, depth: int) -> object:
        if isinstance(node, ast.UnaryOp):
            value = self._fold(node.operand, function, depth)
            if isinstance(node.op, ast.USub) and isinstance(value, int | float):
                return -value
            return not value if isinstance(node.op, ast.Not) and value is not UNKNOWN else UNKNOWN
        return calculated(self._fold(node.left, function, depth), node.op, self._fold(node.right, function, depth))

    def _fold_choice(self, node: ast.BoolOp | ast.IfExp, function: str, depth: int) -> object:
        if isinstance(node, ast.IfExp):
            test = self._fold(node.test, function, depth)
            if test is not UNKNOWN:
                return self._fold(node.body if test else node.orelse, function, depth)
            one, other = self._fold(node.body, function, depth), self._fold(node.orelse, function, depth)
            return one if type(one) is type(other) and one == other else UNKNOWN
        is_or = isinstance(node.op, ast.Or)
        value: object = UNKNOWN
        for each in node.values:
            value = self._fold(each, function, depth)
            is_unset = value is UNKNOWN and isinstance(each, ast.Call) and self.dotted(each.func) in ENVIRONMENT_CALLS
            if is_or and is_unset:  # `os.getenv("X") or "y"` gives a default too
                continue
            if value is UNKNOWN or bool(value) is is_or:
                return value
        return value

    def _fold_text(self, node: ast.JoinedStr, function: str, depth: int) -> object:
        parts = []
        for each in node.values:
            shown = each if isinstance(each, ast.FormattedValue) else None
            value = self._fold(shown.value if shown is not None else each, function, depth)
            is_formatted = shown is not None and (shown.format_spec is not None or shown.conversion != -1)
            if not isinstance(value, str | int | float) or is_formatted:
                return UNKNOWN
            parts.append(str(value))
        return "".join(parts)

    def _fold_part(self, node: ast.Subscript, function: str, depth: int) -> object:
        key = self._fold(node.slice, function, depth)
        if self.dotted(node.value) == "os.environ":
            return self._environ.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
        value = self._fold(node.value, function, depth)
        if isinstance(value, dict) and isinstance(key, str | int | float):
            return value.get(key, UNKNOWN)
        if isinstance(value, list | tuple) and isinstance(key, int) and -len(value) <= key < len(value):
            return value[key]
        return UNKNOWN

    def _fold_result(self, node: ast.Call, function: str, depth: int) -> object:
        returned = self.makers.returned(node)
        return self._fold(*returned, depth) if returned is not None else self._fold_call(node, function, depth)

    def _fold_call(self, node: ast.Call, function: str, depth: int) -> object:
        name = self.dotted(node.func)
        if name in ENVIRONMENT_CALLS:  # the default is what it is where nobody sets it
            key = self._fold(node.args[0], function, depth) if node.args else UNKNOWN
            if isinstance(key, str) and key in self._environ:
                return self._environ[key]
            return self._fold(node.args[1] if len(node.args) > 1 else _keyword(node, "default"), function, depth)
        if name == "dict" and len(node.args) <= 1:
            return self._fold_update(node, function, depth)
        if (held := turned_to_dict(node, name)) is not None:
            return self._fold_fields(held, function, depth)
        if name in _PATHS and not node.keywords:
            parts = [self._fold(each, function, depth) for each in node.args]
            if parts and all(isinstance(part, str) for part in parts):
                return PurePosixPath(*map(str, parts)).as_posix()
        if name in _PLAIN and len(node.args) == 1:
            value = self._fold(node.args[0], function, depth)
            try:
                return _PLAIN[name](value) if isinstance(value, str | int | float) else UNKNOWN
            except (TypeError, ValueError, OverflowError):
                return UNKNOWN
        return UNKNOWN


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)

"""What names and expressions of a script stand for, as far as that can be known without running it.

A name that is assigned once is its value; one that is assigned twice, in a loop or from anything that is not known here is
unknown. Options of argparse and fields of dataclasses that are read from the command line are their defaults, or what
the command gives them.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath

from .values import UNKNOWN, Value

DEEPEST = 40
"""Names that lead to each other."""
_ENVIRONMENT = frozenset({"os.environ.get", "os.getenv", "environ.get", "getenv"})
_PATHS = frozenset({"os.path.join", "pathlib.Path", "Path"})


class Names:
    """The names of one script."""

    def __init__(self, tree: ast.Module, text: str, flags: Mapping[str, object]) -> None:
        self._lines = text.split("\n")
        self._flags = {name.replace("-", "_"): value for name, value in flags.items()}
        self._imported: dict[str, str] = {}
        self._assigned: dict[tuple[str, str], list[ast.expr | None]] = defaultdict(list)
        """By function and name; None for what is assigned in a way that is not known."""
        self._options: dict[str, ast.expr | None] = {}
        self._fields: dict[str, ast.expr | None] = {}
        self._gather(tree, "")
        self._gather_options(tree)

    def dotted(self, node: ast.expr) -> str:
        """Return the name of a function or attribute with what is imported resolved."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            parts.append(self._imported.get(node.id, node.id))
        elif isinstance(node, ast.Call):
            parts.append(f"{self.dotted(node.func)}()")
        else:
            parts.append("?")
        return ".".join(reversed(parts))

    def value_of(self, node: ast.expr, function: str = "") -> Value:
        """Return an expression and its value."""
        return Value(self._fold(node, function, 0), self._written(node), node.lineno)

    def keywords_of(self, call: ast.Call, function: str) -> tuple[dict[str, Value], bool]:
        """Return the keywords of a call, also of what is unpacked, and whether there may be others."""
        found: dict[str, Value] = {}
        has_unknown = False
        for keyword in call.keywords:
            if keyword.arg is not None:
                found[keyword.arg] = self.value_of(keyword.value, function)
                continue
            unpacked = self._fold(keyword.value, function, 0)
            if isinstance(unpacked, dict):
                text = self._written(keyword.value)
                found |= {str(name): Value(value, text, keyword.value.lineno) for name, value in unpacked.items()}
            else:
                has_unknown = True
        return found, has_unknown

    def _written(self, node: ast.expr) -> str:
        """Return the text of an expression; columns count bytes."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if last >= len(self._lines):  # other line ends than those that are counted here
            return ast.unparse(node)
        lines = [line.encode() for line in self._lines[first : last + 1]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode(errors="replace")

    # -- gathering -----------------------------------------------------------------------------------

    def _gather(self, node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                self._take_import(child)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = child.args
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    self._assigned[child.name, argument.arg].append(None)
                self._gather(child, child.name)
                continue
            elif isinstance(child, ast.ClassDef):
                self._take_class(child)
                self._gather(child, f"{child.name}.")  # methods are gathered under their own names
                continue
            else:
                self._take_assignment(child, function)
            self._gather(child, function)

    def _take_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                self._imported[name] = alias.name if alias.asname else name
            elif node.level == 0:
                self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def _take_assignment(self, node: ast.AST, function: str) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._take_target(target, node.value, function)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            if node.value is not None:
                self._take_target(node.target, node.value, function)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
            self._take_target(node.target, None, function)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._take_target(node.optional_vars, None, function)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                self._assigned["", name].append(None)

    def _take_target(self, target: ast.expr, value: ast.expr | None, function: str) -> None:
        if isinstance(target, ast.Name):
            self._assigned[function, target.id].append(value)
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for place, element in enumerate(target.elts):
                same = len(values) == len(target.elts)
                self._take_target(element, values[place] if same else None, function)

    def _take_class(self, node: ast.ClassDef) -> None:
        """Take the fields of a dataclass: what HfArgumentParser and tyro read from the command line."""
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name) and child.value is not None:
                default: ast.expr | None = child.value
                if isinstance(child.value, ast.Call):  # field(default=...)
                    default = next((each.value for each in child.value.keywords if each.arg == "default"), None)
                name = child.target.id
                self._fields[name] = None if name in self._fields else default

    def _gather_options(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if not (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
            ):
                continue
            flags = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            given = {each.arg: each.value for each in node.keywords}
            named = given.get("dest")
            name = (
                named.value if isinstance(named, ast.Constant) else next((f for f in flags if f.startswith("--")), "")
            )
            if isinstance(name, str) and name:
                action = given.get("action")
                is_switch = isinstance(action, ast.Constant) and action.value == "store_true"
                default = given.get("default", ast.Constant(False, lineno=node.lineno) if is_switch else None)
                self._options[name.lstrip("-").replace("-", "_")] = default

    # -- folding -------------------------------------------------------------------------------------

    def _fold(self, node: ast.expr | None, function: str, depth: int) -> object:
        """Return the value of an expression, or UNKNOWN."""
        if node is None or depth > DEEPEST:
            return UNKNOWN
        deeper = depth + 1
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._fold_name(node.id, function, deeper)
            case ast.Attribute():
                return self._fold_attribute(node, function, deeper)
            case ast.List() | ast.Tuple() | ast.Set():
                values = [self._fold(each, function, deeper) for each in node.elts]
                return tuple(values) if isinstance(node, ast.Tuple) else values
            case ast.Dict():
                return self._fold_dict(node, function, deeper)
            case ast.UnaryOp() | ast.BinOp():
                return self._fold_operation(node, function, deeper)
            case ast.JoinedStr():
                return self._fold_text(node, function, deeper)
            case ast.Call():
                return self._fold_call(node, function, deeper)
        return UNKNOWN

    def _fold_name(self, name: str, function: str, depth: int) -> object:
        for scope in dict.fromkeys((function, "")):
            assigned = self._assigned.get((scope, name))
            if assigned is not None:
                return self._fold(assigned[0], scope, depth) if len(assigned) == 1 else UNKNOWN
        return UNKNOWN

    def _fold_attribute(self, node: ast.Attribute, function: str, depth: int) -> object:
        name = node.attr
        is_arguments = isinstance(node.value, ast.Name) and "arg" in node.value.id.lower()
        if not is_arguments:
            return UNKNOWN
        if name in self._flags:
            return self._flags[name]
        if name in self._options:
            return self._fold(self._options[name], function, depth)
        return self._fold(self._fields.get(name), function, depth)

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
        left, right = self._fold(node.left, function, depth), self._fold(node.right, function, depth)
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            return left + right if len(left) + len(right) < 10_000 else UNKNOWN
        if isinstance(left, int | float) and isinstance(right, int | float):
            return _calculated(left, node.op, right)
        return UNKNOWN

    def _fold_text(self, node: ast.JoinedStr, function: str, depth: int) -> object:
        parts = []
        for each in node.values:
            value = self._fold(each.value if isinstance(each, ast.FormattedValue) else each, function, depth)
            if not isinstance(value, str | int | float) or getattr(each, "format_spec", None) is not None:
                return UNKNOWN
            parts.append(str(value))
        return "".join(parts)

    def _fold_call(self, node: ast.Call, function: str, depth: int) -> object:
        name = self.dotted(node.func)
        if name in _ENVIRONMENT:  # the default is what it is where nobody sets it
            return self._fold(node.args[1], function, depth) if len(node.args) > 1 else UNKNOWN
        if name == "dict" and not node.args:
            found, has_unknown = self.keywords_of(node, function)
            return UNKNOWN if has_unknown else {key: value.value for key, value in found.items()}
        if name in _PATHS and not node.keywords:
            parts = [self._fold(each, function, depth) for each in node.args]
            if parts and all(isinstance(part, str) for part in parts):
                return PurePosixPath(*map(str, parts)).as_posix()
        if name in ("int", "float", "str") and len(node.args) == 1:
            value = self._fold(node.args[0], function, depth)
            try:
                return {"int": int, "float": float, "str": str}[name](value) if value is not UNKNOWN else UNKNOWN
            except (TypeError, ValueError, OverflowError):
                return UNKNOWN
        return UNKNOWN


def _calculated(left: float, op: ast.operator, right: float) -> object:
    """Return what a simple calculation gives; huge powers are nobody's setting and would take long."""
    try:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Pow() if abs(left) < 1e6 and abs(right) < 64:
                return left**right
    except (ArithmeticError, ValueError):
        return UNKNOWN
    return UNKNOWN

"""The reward functions that a script gives to TRL's trainers, as far as they are written in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..subject import Call, Script

TRAINERS = ("GRPOTrainer", "RLOOTrainer")
LAMBDA = "the lambda"
_DEEPEST = 4


@dataclass(frozen=True)
class Reward:
    """One of them."""

    name: str
    arguments: ast.arguments
    line: int
    is_method: bool = False


def rewards(script: Script) -> Iterator[Reward]:
    """Yield every reward whose parameters can be known; one that is decorated may have others."""
    definitions = _definitions(script.tree)
    for call in script.calls_of(*TRAINERS):
        given = _given(call)
        if given is not None:
            yield from _of(given, definitions, 0)


def _given(call: Call) -> ast.expr | None:
    named = next((each.value for each in call.node.keywords if each.arg == "reward_funcs"), None)
    return named if named is not None or len(call.node.args) < 2 else call.node.args[1]


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr


def _definitions(tree: ast.Module) -> dict[str, _Definition | None]:
    """Return what each name stands for; None where that is more than one thing."""
    found: dict[str, _Definition | None] = {}
    methods = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for inner in node.body}
    for node in ast.walk(tree):
        name = ""
        value: _Definition | None = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and id(node) not in methods:
            name, value = node.name, node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            name, value = node.target.id, node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        if name:
            found[name] = value if name not in found else None
    return found


def _of(node: ast.expr, known: dict[str, _Definition | None], depth: int) -> Iterator[Reward]:
    if depth > _DEEPEST:
        return
    if isinstance(node, ast.List | ast.Tuple):
        for each in node.elts:
            yield from _of(each, known, depth + 1)
    elif isinstance(node, ast.Lambda):
        yield Reward(LAMBDA, node.args, node.lineno)
    elif isinstance(node, ast.Name):
        definition = known.get(node.id)
        if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function(definition)
        elif isinstance(definition, ast.expr):
            yield from _of(definition, known, depth + 1)
    elif isinstance(node, ast.Call):
        yield from _made(node, known, depth)


def _made(node: ast.Call, known: dict[str, _Definition | None], depth: int) -> Iterator[Reward]:
    """Yield what a call makes: an object, a partial function, or what a function of the script returns."""
    called = ast.unparse(node.func)
    definition = known.get(called)
    if called in ("partial", "functools.partial") and node.args:
        yield from _of(node.args[0], known, depth + 1)
    elif isinstance(definition, ast.ClassDef) and not definition.decorator_list:
        for each in definition.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == "__call__":
                yield from _function(each, f"{definition.name}.__call__", is_method=True)
    elif isinstance(definition, ast.FunctionDef) and not definition.decorator_list:
        inner = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        returned = [each.value for each in ast.walk(definition) if isinstance(each, ast.Return)]
        for value in returned:
            if isinstance(value, ast.Name) and value.id in inner:
                yield from _function(inner[value.id])


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "", *, is_method: bool = False
) -> Iterator[Reward]:
    if not node.decorator_list:
        yield Reward(name or node.name, node.args, node.lineno, is_method)

"""Training loops that a script writes itself, and whether anything is seen of them while they run."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from ..subject import Script
from .syntax import SAYING, Syntax, last_of, syntax_of

SHORT_STEPS = 1_000
"""So many steps of a loop are waited for."""
_SHOWS = SAYING | frozenset(
    """
    tqdm trange track progress progress_bar set_postfix set_description update_task add_scalar add_scalars log_metric log_metrics
    log_dict report report_scalar send emit put publish save save_state save_pretrained save_model save_checkpoint save_file push_to_hub
    writerow writerows write_text write_bytes dump savefig savez savetxt to_csv to_json flush display notify record callback
    """.split()
)
_QUIET = frozenset(
    """
    torch torchvision torchaudio transformers datasets tokenizers accelerate peft trl safetensors huggingface_hub numpy pandas scipy
    sklearn einops PIL yaml bitsandbytes tqdm wandb evaluate matplotlib
    """.split()
)
"""Packages of which it is known what they show; what others do in a loop is not."""
_Loop = ast.For | ast.AsyncFor | ast.While
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def silent_loop(script: Script) -> ast.AST | None:
    """Return a long training loop that prints, logs and saves nothing while it runs; None where there is none that is known."""
    modules = {each.module.partition(".")[0] for each in script.imports}
    if not all(each in _QUIET or each in sys.stdlib_module_names for each in modules):
        return None
    loops = _Loops(syntax_of(script))
    for call in script.calls_of("backward"):
        around = loops.around(call.node)
        if around and not loops.shows(around) and not _is_short(script, loops.all_around(call.node)):
            return around[0]
    return None


class _Loops:
    def __init__(self, syntax: Syntax) -> None:
        self._syntax = syntax
        self._functions: dict[str, list[_Function]] = {}
        self._uses: dict[str, list[ast.AST]] = {}
        for node in syntax.nodes:
            if isinstance(node, _Function):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                self._uses.setdefault(last_of(node), []).append(node)

    def all_around(self, node: ast.AST) -> list[_Loop]:
        """Return the loops that a step stands in, also those that call the function it is in."""
        found: dict[_Loop, None] = {}
        waiting, seen = [node], {node}
        while waiting:
            node = waiting.pop()
            for over in self._syntax.above(node):
                if isinstance(over, _Loop):
                    found[over] = None
                elif isinstance(over, _Function):
                    new = [each for each in self._uses.get(over.name, ()) if each not in seen]
                    waiting += new
                    seen |= set(new)
                    break
        return list(found)

    def around(self, node: ast.AST) -> list[_Loop]:
        """Return the outermost of them."""
        every = self.all_around(node)
        return [each for each in every if not any(over in every for over in self._syntax.above(each))]

    def shows(self, parts: list[_Loop]) -> bool:
        """Say whether anything in these loops, or in what they call, shows what goes on or keeps it."""
        waiting: list[ast.AST] = list(parts)
        seen: set[ast.AST] = set()
        while waiting:
            for node in ast.walk(waiting.pop()):
                if isinstance(node, ast.Yield | ast.YieldFrom):  # whoever asks for the next one may show it
                    return True
                if isinstance(node, ast.Call):
                    name = last_of(node.func)
                    if name in _SHOWS or any(last_of(inner.func) in _SHOWS for inner in self._made_by(node)):
                        return True
                if isinstance(node, ast.Name | ast.Attribute):
                    new = [each for each in self._functions.get(last_of(node), ()) if each not in seen]
                    seen |= set(new)
                    waiting += new
        return False

    def _made_by(self, call: ast.Call) -> Iterator[ast.Call]:
        """Yield what made the object whose method is called, or that is gone through: `bar = tqdm(...)`."""
        below = [each for each in ast.walk(call.func) if isinstance(each, ast.Name)]
        for name in below:
            for made in self._syntax.assigned.get(name.id, ()):
                value = getattr(made, "value", None)
                if isinstance(value, ast.Call):
                    yield value


def _is_short(script: Script, loops: list[_Loop]) -> bool:
    """Say whether it is known to be over soon."""
    steps = 1.0
    for loop in loops:
        counted = loop.iter if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
        if counted is None or last_of(counted.func) != "range" or not counted.args:
            return False
        scope = syntax_of(script).scope(loop)
        name = scope.name if isinstance(scope, _Function) else ""
        count = script.names.value_of(counted.args[min(1, len(counted.args) - 1)], name).value
        if not isinstance(count, int):
            return False
        steps *= count
    return steps < SHORT_STEPS

"""The check `swallowed-error`: training, loading or saving that may fail without anybody noticing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Script, Subject
from ..syntax import syntax_of
from ..tools import Tools

_TRY = "try:\n    {}\nexcept {}:\n    {}\n"
_CALLS = frozenset(
    {"train", "from_pretrained", "load_dataset", "load_from_disk", "push_to_hub", "save_model", "save_pretrained", "upload_folder",
     "upload_file", "upload_large_folder", "merge_and_unload", "save_to_disk", "snapshot_download"}
)  # fmt: skip
_SAYS = frozenset(
    {
        "print",
        "print_exc",
        "warning",
        "warn",
        "error",
        "exception",
        "info",
        "debug",
        "log",
        "write",
        "critical",
        "format_exc",
        "str",
        "repr",
        "type",
    }
)
_BROAD = frozenset({"Exception", "BaseException"})


class SwallowedError(Check):
    """An error of training, loading, saving or pushing ends the script.

    `except Exception: pass` around `push_to_hub` lets a job end well whose model is lost with its container; around `train` it
    pushes an untrained one. A printed line does not change the exit code.
    """

    passes = (
        Example(_TRY.format("trainer.train()", "Exception as error", "print(error)\n    raise")),
        Example(_TRY.format("model = load(AutoModel.from_pretrained('a'))", "OSError", "model = AutoModel.from_pretrained('b')")),
        Example(_TRY.format("import wandb", "Exception", "pass")), Example(_TRY.format("trainer.train()", "KeyboardInterrupt", "print('stopped')")),
        Example(_TRY.format("trainer.push_to_hub()", "Exception as error", "sys.exit(f'no push: {error}')")),
    )  # fmt: skip
    fails = (
        Example(_TRY.format("trainer.train()", "Exception", "pass")), Example(_TRY.format("trainer.push_to_hub()", "Exception as e", "print(e)")),
        Example("try:\n    data = load_dataset('a')\nexcept:\n    pass\n"),
        Example("import contextlib\nwith contextlib.suppress(Exception):\n    trainer.push_to_hub()\n"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is caught around the calls that matter."""
        for script in subject.scripts:
            for node in syntax_of(script).nodes:
                if isinstance(node, ast.Try) and not _is_followed_up(script, node):
                    handlers: list[ast.ExceptHandler | ast.With] = [
                        each for each in node.handlers if _is_broad(each.type) and all(map(_only_says, each.body))
                    ]
                elif isinstance(node, ast.With) and any(_suppresses(script, item) for item in node.items):
                    handlers = [node]
                else:
                    continue
                if handlers and (call := _call_in(node.body)):
                    yield self._finding(script, handlers[0].lineno, call)

    def _finding(self, script: Script, line: int, call: str) -> Finding:
        return self.warning(
            Place(script.named, line), f"an error of {call}() is caught here, and the script goes on and ends as if all were well",
            f'Say what failed, and pass it on:\nexcept Exception as error:\n    print(f"{call} failed: {{error!r}}", flush=True)\n    raise',
        )  # fmt: skip


def _call_in(body: list[ast.stmt]) -> str:
    """Return the call that matters in a block; those in functions that are only defined there do not count."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_mode = name == "train" and isinstance(node.func, ast.Attribute) and _is_model(node.func.value)
            if name in _CALLS and not is_mode:
                return str(name)
        waiting += ast.iter_child_nodes(node)
    return ""


def _is_followed_up(script: Script, node: ast.Try) -> bool:
    """Say whether it is tried again, or what it should have made is looked at afterwards."""
    inner = [each for statement in node.body for each in ast.walk(statement)]
    if any(isinstance(each, ast.Break | ast.Return) for each in inner):
        return True
    made = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return bool(made & syntax_of(script).tested)


def _is_model(node: ast.expr) -> bool:
    """Say whether `x.train()` only switches a module's mode."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return "model" in str(name).lower() or str(name) in ("self", "net", "network")


def _is_broad(node: ast.expr | None) -> bool:
    names = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(each is None or getattr(each, "id", "") in _BROAD for each in names)


def _only_says(statement: ast.stmt) -> bool:
    """Say whether a statement does nothing about an error but mention it."""
    if isinstance(statement, ast.Pass | ast.Continue | ast.Import | ast.ImportFrom):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    if isinstance(statement.value, ast.Constant):
        return True
    if not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in _SAYS


def _suppresses(script: Script, item: ast.withitem) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and script.names.dotted(call.func).rpartition(".")[2] == "suppress"
        and any(_is_broad(each) for each in call.args)
    )

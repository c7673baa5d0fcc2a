"""The check `swallowed-error`: training, loading or saving that may fail without anybody noticing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.syntax import SAYING, last_of, syntax_of
from ..subject import Script, Subject
from ..tools import Tools

_TRY = "try:\n    {}\nexcept {}:\n    {}\n"
_REWARD = "def right(completions, answer, **more):\n    found = []\n    for text, want in zip(completions, answer):\n        try:\n            found.append(float(int(text) == want))\n        except ValueError:\n            {}\n    return found\n"  # fmt: skip
_CALLS = frozenset(
    {"train", "from_pretrained", "load_dataset", "load_from_disk", "push_to_hub", "save_model", "save_pretrained", "upload_folder",
     "upload_file", "upload_large_folder", "merge_and_unload", "save_to_disk", "snapshot_download"}
)  # fmt: skip
_SAYS = SAYING | {"str", "repr", "type"}
_STEPS = frozenset({"backward", "training_step"})
_ADDS = frozenset({"append", "extend", "appendleft"})
_BROAD = frozenset({"Exception", "BaseException"})


class SwallowedError(Check):
    """An error of training, loading, saving or pushing ends the script.

    `except Exception: pass` around `push_to_hub` lets a job end well whose model is lost with its container; around `train` it
    pushes an untrained one; around a step every step may fail and none is trained. A printed line does not change the exit code.
    In a reward function that passes over an error there are fewer rewards than completions.
    """

    passes = (
        Example(_TRY.format("trainer.train()", "Exception as error", "print(error)\n    raise")),
        Example(_TRY.format("model = load(AutoModel.from_pretrained('a'))", "OSError", "model = AutoModel.from_pretrained('b')")),
        Example(_TRY.format("import wandb", "Exception", "pass")), Example(_TRY.format("trainer.train()", "KeyboardInterrupt", "print('stopped')")),
        Example(_TRY.format("trainer.push_to_hub()", "Exception as error", "sys.exit(f'no push: {error}')")),
        Example(_REWARD.format("found.append(0.0)")),
    )  # fmt: skip
    fails = (
        Example(_TRY.format("trainer.train()", "Exception", "pass")), Example(_TRY.format("trainer.push_to_hub()", "Exception as e", "print(e)")),
        Example("try:\n    data = load_dataset('a')\nexcept:\n    pass\n"),
        Example("import contextlib\nwith contextlib.suppress(Exception):\n    trainer.push_to_hub()\n"),
        Example("for batch in loader:\n    try:\n        model(batch).loss.backward()\n        optimizer.step()\n    except:\n        continue\n"),
        Example(_REWARD.format("pass")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is caught around the calls that matter."""
        for script in subject.scripts:
            rewards = _reward_functions(script)
            for node in syntax_of(script).nodes:
                if not isinstance(node, ast.Try | ast.With):
                    continue
                reward = syntax_of(script).scope(node)
                if reward in rewards and (rewarded := _adds_to(node)) and (line := _loses_a_reward(script, node)):
                    yield self._finding_in_reward(script, line, getattr(reward, "name", "it"), rewarded)
                    continue
                line, call = _caught_at(script, node), _call_in(node.body)
                if line and call and not (isinstance(node, ast.Try) and _is_followed_up(script, node, call)):
                    yield self._finding(script, line, call)

    def _finding(self, script: Script, line: int, call: str) -> Finding:
        return self.warning(
            Place(script.named, line), f"an error of {call}() is caught here, and the script goes on and ends as if all were well",
            f'Say what failed, and pass it on:\nexcept Exception as error:\n    print(f"{call} failed: {{error!r}}", flush=True)\n    raise',
        )  # fmt: skip

    def _finding_in_reward(self, script: Script, line: int, function: str, rewarded: str) -> Finding:
        return self.warning(
            Place(script.named, line), f"an error in {function} is caught here, and that completion gets no reward: there are fewer rewards than completions",
            f"Give it a reward too, by catching only what a wrong answer raises:\nexcept (ValueError, IndexError):\n    {rewarded}.append(0.0)",
        )  # fmt: skip


def _caught_at(script: Script, node: ast.Try | ast.With, *, is_any: bool = False) -> int:
    """Return the line at which every error, or any at all, is caught and at most mentioned; 0 where none is."""
    if isinstance(node, ast.With):
        return node.lineno if any(_suppresses(script, item, is_any=is_any) for item in node.items) else 0
    handlers = [each for each in node.handlers if (is_any or _is_broad(each.type)) and all(map(_only_says, each.body))]
    return handlers[0].lineno if handlers else 0


def _reward_functions(script: Script) -> set[ast.AST]:
    """Return the functions that give a reward to each completion."""
    given = (each.keywords for each in ast.walk(script.tree) if isinstance(each, ast.Call))
    wanted = [each.value for keywords in given for each in keywords if each.arg == "reward_funcs"]
    names = {each.id for value in wanted for each in ast.walk(value) if isinstance(each, ast.Name)}
    return {
        each
        for each in syntax_of(script).nodes
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and (each.name in names or any(parameter.arg == "completions" for parameter in each.args.args))
    }


def _adds_to(node: ast.Try | ast.With) -> str:
    """Return the list that a block adds rewards to; empty where it adds to none."""
    called = (each.func for part in node.body for each in ast.walk(part) if isinstance(each, ast.Call))
    adds = (each for each in called if isinstance(each, ast.Attribute) and each.attr in _ADDS)
    return next((ast.unparse(each.value) for each in adds), "")


def _loses_a_reward(script: Script, node: ast.Try | ast.With) -> int:
    """Return the line at which an error is caught that lets a completion go without a reward; 0 where none is."""
    is_in_loop = any(isinstance(each, ast.For | ast.While) for each in syntax_of(script).above(node))
    return _caught_at(script, node, is_any=True) if is_in_loop else 0


def _call_in(body: list[ast.stmt]) -> str:
    """Return the call that matters in a block; those in functions that are only defined there do not count."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            name = last_of(node.func)
            is_mode = name == "train" and isinstance(node.func, ast.Attribute) and _is_model(node.func.value)
            if name in _STEPS or (name in _CALLS and not is_mode):
                return name
        waiting += ast.iter_child_nodes(node)
    return ""


def _is_followed_up(script: Script, node: ast.Try, call: str) -> bool:
    """Say whether it is tried again, or what it should have made is looked at afterwards.

    Of a step in a loop much is looked at and the loop may be left early, whatever became of the others.
    """
    inner = [each for statement in node.body for each in ast.walk(statement)]
    if any(isinstance(each, ast.Return) for each in inner):
        return True
    if call in _STEPS:
        return any(isinstance(each, ast.Break) for each in (*node.body, *node.orelse))
    if any(isinstance(each, ast.Break) for each in inner):
        return True
    made = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return bool(made & syntax_of(script).tested)


def _is_model(node: ast.expr) -> bool:
    """Say whether `x.train()` only switches a module's mode."""
    name = last_of(node)
    return "model" in name.lower() or name in ("self", "net", "network")


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
    return isinstance(statement.value, ast.Call) and last_of(statement.value.func) in _SAYS


def _suppresses(script: Script, item: ast.withitem, *, is_any: bool) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and script.names.dotted(call.func).rpartition(".")[2] == "suppress"
        and any(is_any or _is_broad(each) for each in call.args)
    )

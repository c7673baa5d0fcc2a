"""The check `reward-column-dropped`: the columns that reward functions ask for are still there when they are called."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Call, Script, Subject
from ..tools import Tools

_TRAINERS = ("GRPOTrainer", "RLOOTrainer")
_ALWAYS = frozenset(
    {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
)
_SCRIPT = """
def exact(completions, answer, **kwargs):
    return [float(text == right) for text, right in zip(completions, answer)]

data = load_dataset("org/data", split="train")
data = data.map(lambda row: {"prompt": row["question"]}, remove_columns=%s)
trainer = GRPOTrainer(model="org/model", reward_funcs=[exact], train_dataset=data)
"""


class RewardColumnDropped(Check):
    """The columns that reward functions ask for by name are in the data set when the trainer gets it.

    TRL hands every column of the data set to the reward functions. One that `remove_columns` or `select_columns` has taken out is
    missing when the first completions have been made: `TypeError: exact() missing 1 required positional argument: 'answer'`.
    """

    passes = (
        Example(_SCRIPT % '["question"]'),
        Example(
            (_SCRIPT % "data.column_names").replace('row["question"]}', 'row["question"], "answer": row["answer"]}')
        ),
        Example((_SCRIPT % '["question", "answer"]').replace("answer, **kwargs", "answer=None, **kwargs")),
    )
    fails = (Example(_SCRIPT % '["question", "answer"]'), Example(_SCRIPT % "data.column_names"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the parameters of the functions with what is taken out; what is put in anywhere counts as there."""
        for script in subject.scripts:
            trainers = [call for call in script.calls if call.last in _TRAINERS]
            if len(trainers) != 1:
                continue
            added = _added(script)
            for function in _functions(script, trainers[0]):
                for name in _required(function):
                    dropped = None if name in added else _dropped(script, name)
                    if dropped is not None:
                        yield self.error(
                            Place(script.named, dropped.line),
                            f"{function.name} (line {function.lineno}) asks for the column {name}, which is taken out of the data set here",
                            f'{_kept(dropped, name)}, or have the function of map return it too: "{name}": row["{name}"]',
                        )  # fmt: skip


def _functions(script: Script, trainer: Call) -> Iterator[ast.FunctionDef]:
    """Yield the functions of the script that are given as rewards."""
    given = next((each.value for each in trainer.node.keywords if each.arg == "reward_funcs"), None)
    names = given.elts if isinstance(given, ast.List | ast.Tuple) else [given]
    wanted = {each.id for each in names if isinstance(each, ast.Name)}
    for node in ast.walk(script.tree):
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            yield node


def _required(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    needed = plain[: len(plain) - len(arguments.defaults)]
    needed += [
        each for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return [each.arg for each in needed if each.arg not in _ALWAYS]


def _added(script: Script) -> set[str]:
    """Return every name that the script may make a column of."""
    found: set[str] = set()
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Dict):
            found |= {
                each.value for each in node.keys if isinstance(each, ast.Constant) and isinstance(each.value, str)
            }
        elif (
            isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and isinstance(node.slice, ast.Constant)
        ):
            found.add(str(node.slice.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            found |= {each.arg for each in node.keywords if each.arg is not None}
    for call in script.calls:
        if call.last in ("add_column", "rename_column", "rename_columns"):
            for value in (*call.arguments, *call.keywords.values()):
                held = value.value
                found |= {str(each) for each in held.values()} if isinstance(held, dict) else {str(held)}
    return found


def _dropped(script: Script, name: str) -> Call | None:
    """Return the call that takes a column out."""
    for call in script.calls:
        taken = call.given(0, "column_names") if call.last == "remove_columns" else call.keywords.get("remove_columns")
        if taken is not None:
            names = [taken.value] if isinstance(taken.value, str) else taken.value
            if isinstance(names, list | tuple) and name in names:
                return call
            if call.last == "map" and taken.text.endswith(".column_names") and _makes_whole_rows(script, call):
                return call
        kept = call.given(0, "column_names") if call.last == "select_columns" else None
        names = kept.value if kept is not None else None
        if isinstance(names, list | tuple) and all(isinstance(each, str) for each in names) and name not in names:
            return call
    return None


def _kept(call: Call, name: str) -> str:
    """Return how the call is written so that a column stays."""
    taken = call.keywords.get("remove_columns")
    if call.last == "select_columns":
        return f"Add {name} to the columns that are selected"
    if taken is not None and taken.text.endswith(".column_names"):
        return f'Write remove_columns=[each for each in {taken.text} if each != "{name}"]'
    return f"Leave {name} out of remove_columns"


def _makes_whole_rows(script: Script, call: Call) -> bool:
    """Say whether what a function of `map` returns is written out, so that all columns are known."""
    function = call.node.args[0] if call.node.args else None
    if isinstance(function, ast.Lambda):
        return _is_plain(function.body)
    if not isinstance(function, ast.Name):
        return False
    made = [node for node in ast.walk(script.tree) if isinstance(node, ast.FunctionDef) and node.name == function.id]
    returns = [node.value for each in made for node in ast.walk(each) if isinstance(node, ast.Return)]
    return len(made) == 1 and bool(returns) and all(_is_plain(value) for value in returns)


def _is_plain(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Dict) and all(isinstance(key, ast.Constant) for key in value.keys)

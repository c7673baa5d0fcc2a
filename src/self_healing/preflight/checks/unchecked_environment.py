"""The check `unchecked-environment`: names from the environment that are used though they may not be there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import cast

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.running import Way, how_it_runs
from ..scripts.syntax import Syntax, syntax_of
from ..subject import Call, Script, Subject
from ..subject.folding import ENVIRONMENT_CALLS
from ..tools import Tools

_OS = "import os\nfrom datasets import load_dataset\n"
_FIRST = frozenset(
    {"load_dataset", "load_dataset_builder", "load_from_disk", "snapshot_download", "hf_hub_download", "create_repo", "open", "Path",
     "int", "float", "join", "listdir", "makedirs", "login"}
)  # fmt: skip
_NAMED = frozenset(
    {"repo_id", "pretrained_model_name_or_path", "model_id", "model", "path", "folder_path", "train_file"}
)
_TAKERS = ("Trainer", "Config", "Arguments", "from_pretrained", "upload_folder", "upload_file", "create_repo", "load_dataset",
           "snapshot_download", "hf_hub_download", "push_to_hub")  # fmt: skip
_LAUNCHER = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HOME", "USER", "PATH", "PWD")


class UncheckedEnvironment(Check):
    """A name from the environment is there, or its absence is said, before it is used.

    `os.environ.get("MODEL")` is None where nobody set it. `from_pretrained(None)` then fails with a message about something
    else, `f"{user}/model"` becomes the repository `None/model`, and `login(None)` waits for a person to type a token.
    """

    passes = (
        Example(_OS + 'data = load_dataset(os.environ["DATASET"])\n'),
        Example(_OS + 'data = load_dataset(os.environ.get("DATASET", "trl-lib/Capybara"))\n'),
        Example(_OS + 'NAME = os.environ.get("DATASET")\nif not NAME:\n    raise ValueError("DATASET is not set")\ndata = load_dataset(NAME)\n'),
        Example(_OS + 'data = load_dataset("trl-lib/Capybara", token=os.environ.get("HF_TOKEN"))\n'),
    )  # fmt: skip
    fails = (
        Example('import os\nfrom peft import PeftModel\nADAPTER = os.getenv("ADAPTER")\nPeftModel.from_pretrained(base, ADAPTER)\n'),
        Example(_OS + 'data = load_dataset(os.environ.get("DATASET"))\n'),
        Example(_OS + 'NAME = os.getenv("DATASET")\ndata = load_dataset(NAME)\n'),
        Example('import os\nfrom huggingface_hub import login\nlogin(token=os.environ.get("HF_TOKEN"))\n'),
        Example('import os\nfrom huggingface_hub import create_repo\nUSER = os.environ.get("HF_USER")\ncreate_repo(f"{USER}/model")\n'),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Follow what is read from the environment to where it must be something."""
        for script in subject.scripts:
            syntax = syntax_of(script)
            told = _set_for(subject, script, tools)
            for call in script.calls:
                for given in _must_be_there(call):
                    for variable in _variables(script, syntax, given):
                        if variable not in told and variable not in _looked_at(script, syntax):
                            told.add(variable)
                            yield self._finding(script, call, variable, given)

    def _finding(self, script: Script, call: Call, variable: str, given: ast.expr) -> Finding:
        name = given.id if isinstance(given, ast.Name) else variable
        return self.warning(
            Place(script.named, call.line), f"{variable} is read from the environment and handed to {call.last} unchecked: it is None where nobody set it",
            f'Read it so that its absence is said at once:\n{name} = os.environ.get("{variable}")\n'
            f'if not {name}:\n    raise SystemExit("{variable} is not set: export {variable}=..., or pass it to the job")',
        )  # fmt: skip


def _set_for(subject: Subject, script: Script, tools: Tools) -> set[str]:
    """Return the variables that are there: those of a launcher, of the command, and here those of this machine."""
    running = how_it_runs(subject, script)
    words = subject.command.argv if subject.command is not None else ()
    named = {word.partition("=")[0] for word in words}
    job = subject.job if running.way is Way.JOB else None
    of_job = (*job.secrets, *job.env) if job is not None else ()
    return {*_LAUNCHER, *named, *of_job, *(tools.environ if running.way in (Way.HERE, Way.ELSEWHERE) else ())}


def _must_be_there(call: Call) -> Iterator[ast.expr]:
    """Yield the arguments of a call that may not be None."""
    node = call.node
    owner = call.name.rpartition(".")[0]
    is_first = call.last in _FIRST and not (call.last == "join" and not owner.endswith("path"))
    is_hub_push = call.last == "push_to_hub" and "trainer" not in owner.lower()
    if node.args and (is_first or call.last == "from_pretrained" or is_hub_push):
        yield node.args[0]
    if len(node.args) > 1 and call.last == "from_pretrained" and owner.rpartition(".")[2].startswith("PeftModel"):
        yield node.args[1]  # the adapter; the first is the model that it is put on
    if call.last.endswith(_TAKERS) or is_first:
        yield from (each.value for each in node.keywords if each.arg in _NAMED)
    texts = (each.value for each in node.keywords if each.arg == "hub_model_id")
    yield from (each for each in texts if isinstance(each, ast.JoinedStr))  # None itself is the default
    if call.last == "login" and "wandb" not in owner:
        yield from (each.value for each in node.keywords if each.arg == "token")


def _variables(script: Script, syntax: Syntax, node: ast.expr) -> Iterator[str]:
    """Yield the variables of the environment in an expression that nothing has looked at."""
    if isinstance(node, ast.JoinedStr):
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _variables(script, syntax, part.value)
    elif isinstance(node, ast.Call):
        yield from _read_by(script, node)
    elif isinstance(node, ast.Name):
        assigned = syntax.assigned.get(node.id, [])
        only = assigned[0] if len(assigned) == 1 else None
        value = only.value if isinstance(only, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Call) and node.id not in _looked_at(script, syntax):
            yield from _read_by(script, value)


def _read_by(script: Script, node: ast.Call) -> Iterator[str]:
    is_read = script.names.dotted(node.func) in ENVIRONMENT_CALLS
    if is_read and len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Constant):
        yield str(node.args[0].value)


def _looked_at(script: Script, syntax: Syntax) -> frozenset[str]:
    """Return the names that are tested, or handed to a function of the script's own that may do it.

    Variables count by their own names too: `if "HF_TOKEN" not in os.environ`, `for name in ("MODEL", "DATA"): ...`.
    """
    if "looked at" not in syntax.remembered:
        own = {each.name for each in syntax.nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
        found = set(syntax.tested)
        for node in syntax.nodes:
            if isinstance(node, ast.BoolOp | ast.Compare | ast.List | ast.Tuple | ast.Set | ast.Dict) or (
                isinstance(node, ast.Call) and script.names.dotted(node.func) in own
            ):
                below = [each for each in ast.walk(node) if isinstance(each, ast.Name | ast.Constant)]
                found |= {each.id if isinstance(each, ast.Name) else str(each.value) for each in below}
        syntax.remembered["looked at"] = frozenset(found)
    return cast("frozenset[str]", syntax.remembered["looked at"])

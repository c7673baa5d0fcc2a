"""The names that the installed transformers, TRL and PEFT take, read from their source: importing them takes seconds.

Where a library is not installed, the list in `data/signatures.json` counts; it says of which versions it is.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..packages.distributions import installed_version
from ..subject.parsing import parsed

_FILES = {
    "TrainingArguments": "transformers/training_args.py",
    "Seq2SeqTrainingArguments": "transformers/training_args_seq2seq.py",
    "Trainer": "transformers/trainer.py",
    "_BaseConfig": "trl/trainer/base_config.py",
    "SFTConfig": "trl/trainer/sft_config.py",
    "DPOConfig": "trl/trainer/dpo_config.py",
    "GRPOConfig": "trl/trainer/grpo_config.py",
    "RLOOConfig": "trl/trainer/rloo_config.py",
    "KTOConfig": "trl/trainer/kto_config.py",
    "RewardConfig": "trl/trainer/reward_config.py",
    "ModelConfig": "trl/trainer/model_config.py",
    "ScriptArguments": "trl/scripts/utils.py",
    "DatasetMixtureConfig": "trl/scripts/utils.py",
    "SFTTrainer": "trl/trainer/sft_trainer.py",
    "DPOTrainer": "trl/trainer/dpo_trainer.py",
    "GRPOTrainer": "trl/trainer/grpo_trainer.py",
    "RLOOTrainer": "trl/trainer/rloo_trainer.py",
    "KTOTrainer": "trl/trainer/kto_trainer.py",
    "RewardTrainer": "trl/trainer/reward_trainer.py",
    "LoraConfig": "peft/tuners/lora/config.py",
    "PeftConfig": "peft/config.py",
    "PeftConfigMixin": "peft/config.py",
}
_WITHOUT_FIELDS = frozenset({"PushToHubMixin", "object", "ABC"})
_CHOICES = {
    "optim": ("transformers/training_args.py", "OptimizerNames"),
    "lr_scheduler_type": ("transformers/trainer_utils.py", "SchedulerType"),
    "eval_strategy": ("transformers/trainer_utils.py", "IntervalStrategy"),
    "logging_strategy": ("transformers/trainer_utils.py", "IntervalStrategy"),
    "save_strategy": ("transformers/trainer_utils.py", "SaveStrategy"),
    "hub_strategy": ("transformers/trainer_utils.py", "HubStrategy"),
}
_COMPLETION_LENGTH = 512
"""What TRL cuts completions at where it is not installed; older versions had 256."""
_DATA = Path(__file__).parent / "data" / "signatures.json"


@dataclass(frozen=True)
class Signature:
    """What a class takes."""

    names: frozenset[str]
    library: str
    """`trl 1.16.0`: whose names these are."""
    version: str


@functools.cache
def signature_of(name: str) -> Signature | None:
    """Return the names that a class takes; None where they are not known."""
    if name not in _FILES:
        return None
    library = _FILES[name].partition("/")[0]
    version = installed_version(library)
    if version is None:
        return _written_down(name, library)
    names = _trainer_names(name) if name.endswith("Trainer") else _field_names(name)
    return Signature(frozenset(names), f"{library} {version}", str(version)) if names else None


@functools.cache
def choices_of(name: str) -> frozenset[str]:
    """Return the values that an argument of transformers may have; empty where they are not known."""
    if name not in _CHOICES:
        return frozenset()
    file, cls = _CHOICES[name]
    found = _class_of(file, cls)
    if found is None:
        return frozenset(_written()["choices"].get(name, ()))
    values = [each.value for each in found.body if isinstance(each, ast.Assign)]
    return frozenset(each.value for each in values if isinstance(each, ast.Constant) and isinstance(each.value, str))


@functools.cache
def completion_length(method: str) -> int:
    """Return at how many tokens GRPO and RLOO cut completions where nobody says it: as the installed TRL has it."""
    name = f"{method.upper()}Config"
    found = _class_of(_FILES[name], name) if name in _FILES else None
    for each in found.body if found is not None else ():
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "max_completion_length":
            keywords = each.value.keywords if isinstance(each.value, ast.Call) else []
            given = next((keyword.value for keyword in keywords if keyword.arg == "default"), each.value)
            if isinstance(given, ast.Constant) and isinstance(given.value, int):
                return given.value
    return _COMPLETION_LENGTH


def _trainer_names(name: str) -> set[str]:
    """Return the keywords of a trainer's constructor; only its head is parsed, the files are long."""
    text = source_of(_FILES[name])
    start = re.search(rf"^class {name}\b", text, re.MULTILINE)
    head = re.compile(r"^    def __init__\((?P<arguments>.*?)\n    \)[^\n]*:$", re.MULTILINE | re.DOTALL)
    found = head.search(text, start.start()) if start is not None else None
    if found is None:
        return set()
    try:
        tree: ast.Module = parsed(f"def f({found['arguments']}\n): ...")
    except SyntaxError:
        return set()
    arguments = tree.body[0].args if isinstance(tree.body[0], ast.FunctionDef) else None
    if arguments is None or arguments.kwarg is not None:  # anything is taken
        return set()
    return {each.arg for each in (*arguments.args, *arguments.kwonlyargs)} - {"self"}


def _field_names(name: str) -> set[str]:
    """Return the fields of a dataclass and of its bases; none where a base is not known."""
    found = _class_of(_FILES[name], name)
    if found is None:
        return set()
    names = {
        each.target.id for each in found.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for base in (ast.unparse(each).rpartition(".")[2] for each in found.bases):
        if base in _WITHOUT_FIELDS:
            continue
        inherited = _field_names(base) if base in _FILES else set()
        if not inherited:
            return set()
        names |= inherited
    return names


def _class_of(file: str, name: str) -> ast.ClassDef | None:
    tree = _tree(file)
    return next((each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name), None)


@functools.cache
def _tree(file: str) -> ast.Module:
    try:
        tree: ast.Module = parsed(source_of(file))
    except SyntaxError:  # of a later Python
        return ast.Module([], [])
    return tree


@functools.cache
def source_of(file: str) -> str:
    """Return the text of a file of an installed library, `trl/__init__.py`; empty where there is none."""
    library, _, rest = file.partition("/")
    spec = importlib.util.find_spec(library)  # of a top-level package: nothing is imported
    if spec is None or spec.origin is None:
        return ""
    try:
        return (Path(spec.origin).parent / rest).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _written_down(name: str, library: str) -> Signature | None:
    names = _written()["names"].get(name)
    version = str(_written()["versions"].get(library, ""))
    return Signature(frozenset(names), f"{library} {version}", str(version)) if names else None


@functools.cache
def _written() -> dict[str, dict[str, list[str]]]:
    loaded: dict[str, dict[str, list[str]]] = json.loads(_DATA.read_text(encoding="utf-8"))
    return loaded

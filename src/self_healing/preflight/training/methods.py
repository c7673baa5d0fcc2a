"""How a training is done, where no class or command says it: by the parser of its script, by the keys of its config."""

from __future__ import annotations

import ast
import re

from ..subject import Config, Script

METHODS = {
    "SFTConfig": "sft", "DPOConfig": "dpo", "GRPOConfig": "grpo", "RLOOConfig": "rloo", "KTOConfig": "kto",
    "RewardConfig": "reward", "ORPOConfig": "orpo", "CPOConfig": "cpo", "TrainingArguments": "",
    "Seq2SeqTrainingArguments": "",
}  # fmt: skip
"""The classes that hold a training's arguments, and how they train."""
PARSERS = ("TrlParser", "HfArgumentParser")
_COMMENT = re.compile(r"^\s*#.*\btrl (sft|dpo|grpo|kto|reward|rloo)\b", re.MULTILINE)
_OWN_KEYS = {
    "grpo": frozenset({"num_generations", "num_iterations", "epsilon_high", "mask_truncated_completions", "scale_rewards"}),
    "kto": frozenset({"desirable_weight", "undesirable_weight"}),
    "reward": frozenset({"center_rewards_coefficient"}),
    "dpo": frozenset({"precompute_ref_log_probs", "ld_alpha", "use_weighting", "sync_ref_model", "discopop_tau"}),
    "sft": frozenset({"assistant_only_loss", "completion_only_loss", "packing", "dataset_text_field", "eval_packing"}),
}  # fmt: skip
"""Arguments that one method alone has; GRPO and RLOO share theirs, and their arithmetic where `num_generations` is given."""


def parsed_class(script: Script) -> str:
    """Return the class of training arguments that a script has its parser fill; empty where there is not exactly one."""
    named = {
        node.id
        for call in script.calls_of(*PARSERS)
        for given in (*call.node.args, *(each.value for each in call.node.keywords))
        for node in ast.walk(_resolved(script, given))
        if isinstance(node, ast.Name)
    }
    found = named & METHODS.keys()
    return found.pop() if len(found) == 1 else ""


def _resolved(script: Script, node: ast.expr) -> ast.expr:
    """Return what a name was given once: `types = (ScriptArguments, SFTConfig)`."""
    if not isinstance(node, ast.Name):
        return node
    made = [
        each.value
        for each in ast.walk(script.tree)
        if isinstance(each, ast.Assign) and any(isinstance(to, ast.Name) and to.id == node.id for to in each.targets)
    ]
    return made[0] if len(made) == 1 else node


def method_of_trainers(script: Script) -> str:
    """Return the method of the one kind of TRL's trainers that a script makes."""
    found = {f"{call.last[:-7]}Config" for call in script.calls if call.last.endswith("Trainer")} & METHODS.keys()
    return METHODS[found.pop()] if len(found) == 1 else ""


def method_of_config(config: Config) -> str:
    """Return the method of a config of TRL's commands: what its own comment says, or a key that only one method has."""
    if named := set(_COMMENT.findall(config.text)):
        return named.pop() if len(named) == 1 else ""
    keys = config.content.keys()
    found = [method for method, own in _OWN_KEYS.items() if own & keys]
    if len(found) != 1 or (found == ["grpo"] and "num_generations" not in keys):  # RLOO has another number of them
        return ""
    return found[0]

"""Who reads a config, and whether a text becomes a number on the way."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import replace

from .config import Config, ConfigValue
from .frameworks import normal
from .script import Script
from .subject import Subject

NUMBERS = frozenset(
    "learning_rate weight_decay warmup_steps warmup_ratio max_grad_norm adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps \
    per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps logging_steps save_steps eval_steps \
    save_total_limit max_length seed beta temperature num_generations max_completion_length lora_r r lora_alpha \
    lora_dropout label_smoothing_factor neftune_noise_alpha dataloader_num_workers".split()
)
"""Settings that are numbers whoever reads them."""
_TURNING_FRAMEWORKS = frozenset({"hydra", "trl", "axolotl", "llama-factory"})
_TURNING_MODULES = frozenset(
    "omegaconf hydra pydantic pydantic_settings ruamel tyro jsonargparse draccus pyrallis lightning".split()
)
"""Their readers make numbers of texts: by a YAML 1.2 of their own, or by the types of the fields."""
_PLAIN = frozenset({"safe_load", "full_load", "parse_yaml_file"})
_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
_QUOTED = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_WHOLE = re.compile(r"[-+]?\d+")
_TEXTS = frozenset({"env", "environment", "secrets", "tags", "special_tokens"})
"""Sections whose values are texts to everybody."""
_UNTYPED = ("trl", "axolotl")
"""Their readers know the types of their own fields, and none below `..._kwargs`."""
_PLAIN_LOADS = ("yaml.load", "yaml.unsafe_load", "yaml.safe_load_all", "yaml.load_all")


def turns_texts(subject: Subject, config: Config) -> bool:
    """Say whether the reader of a config makes numbers of texts.

    A command of TRL, Axolotl or LLaMA-Factory is such a reader, so is a script with OmegaConf, pydantic or TRL's parser. One
    that has PyYAML read it by itself is not. Where no reader is seen, it is that of the framework whose config it is.
    """
    command = subject.command
    if command is not None and (command.method or command.configs):
        return True
    if any(_is_turning(script) for script in subject.scripts):
        return True
    if any(_reads_plainly(script) for script in subject.scripts):
        return any(_hands_on(script, config.framework) for script in subject.scripts)
    return config.framework in _TURNING_FRAMEWORKS


def is_number(path: tuple[str, ...], text: str) -> bool:
    """Say whether a text of a config is meant as a number: with an exponent, or quoted under a name that wants one."""
    if any(part.lower() in _TEXTS for part in path[:-1]):
        return False
    return _EXPONENT.fullmatch(text) is not None or (
        normal(path[-1]) in NUMBERS and _QUOTED.fullmatch(text) is not None
    )


def with_numbers(subject: Subject, config: Config) -> Config:
    """Return a config as its reader sees it: numbers where that makes them of texts, so that all checks judge them.

    What is still a text behind this is one to the training, too.
    """
    if config.framework in ("job", "accelerate"):
        return config
    if is_yaml(config):
        is_turned = turns_texts(subject, config)
    elif config.framework == "deepspeed":
        return config
    else:  # what is said of frameworks is said of their YAML
        is_turned = turns_texts(subject, replace(config, framework=""))
    turned = turned_names(subject)

    def seen(value: ConfigValue) -> ConfigValue:
        text = value.value
        if not isinstance(text, str) or not is_number(value.path, text):
            return value
        has_type = config.framework not in _UNTYPED or not any(part.endswith("_kwargs") for part in value.path[:-1])
        if value.path[-1] not in turned and not (is_turned and has_type):
            return value
        return replace(value, value=int(text) if _WHOLE.fullmatch(text) else float(text))

    return replace(config, values=tuple(map(seen, config.values)))


def is_yaml(config: Config) -> bool:
    """Say whether a config is one of YAML, where a number may be a text without quotes."""
    return config.path.suffix.lower() in (".yaml", ".yml")


def _is_turning(script: Script) -> bool:
    imported = {each.module.partition(".")[0] for each in script.imports}
    return bool(imported & _TURNING_MODULES) or any(
        call.last in ("TrlParser", "add_implicit_resolver") or "OmegaConf" in call.name for call in script.calls
    )


def _reads_plainly(script: Script) -> bool:
    return any(call.last in _PLAIN or call.name in _PLAIN_LOADS for call in script.calls)


def _hands_on(script: Script, framework: str) -> bool:
    """Say whether a script that reads the config of a framework starts it too: then that reads it again."""
    words = {"axolotl": "axolotl", "llama-factory": "llamafactory", "hydra": "hydra"}
    return framework in words and words[framework] in script.text.lower().replace("-", "").replace("_", "")


def turned_names(subject: Subject) -> frozenset[str]:
    """Return the keys that a script makes numbers of by itself: `float(config["learning_rate"])`."""
    return frozenset().union(*(_turned(script.tree) for script in subject.scripts))


@functools.lru_cache(maxsize=64)
def _turned(tree: ast.Module) -> frozenset[str]:
    return frozenset(
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("float", "int", "Decimal")
        for name in _named(node)
    )


def _named(call: ast.Call) -> Iterator[str]:
    for given in call.args:
        for node in ast.walk(given):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
            elif isinstance(node, ast.Attribute):
                yield node.attr

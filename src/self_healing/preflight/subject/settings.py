"""The settings of a training from all its sources, under the names that transformers and TRL use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..finding import Place
from .command import Command
from .config import Config
from .frameworks import SYNONYMS, normal, setting_name
from .script import Call, Script
from .values import UNKNOWN, Setting, Value

__all__ = ["SYNONYMS", "command_settings", "config_settings", "is_configuration", "normal", "script_settings"]
_REWARDED = frozenset({"GRPOTrainer", "RLOOTrainer"})
_GIVEN_SETTINGS = ("Config", "Arguments", "Args")


def is_configuration(owner: str) -> bool:
    """Say whether a class is one of settings by its name: `SFTConfig`, `TrainingArguments`; trainers too."""
    return owner.endswith(_GIVEN_SETTINGS) or owner.endswith("Trainer")


def script_settings(script: Script) -> Iterator[Setting]:
    """Yield what a script gives to configurations: `SFTConfig(...)`, `TrainingArguments(...)`, `LoraConfig(...)`, trainers.

    What is set after an object was made comes after it, with the class of the object as its owner.
    """
    made = [call for call in script.calls if is_configuration(call.last) and call.last[:1].isupper()]
    used = _used(script, made)
    for call in sorted(made, key=lambda each: id(each.node) in used):  # one that is given to a trainer counts more
        for name, value in _given(call).items():
            yield Setting(
                name=name, key=name, value=value.value, text=value.text, place=Place(script.named, value.line), owner=call.last
            )  # fmt: skip
    for each in script.attributes:
        owner = each.maker.rpartition(".")[2]
        if is_configuration(owner):
            yield Setting(
                name=each.name, key=f"{each.target}.{each.name}", value=each.value.value, text=each.value.text,
                place=Place(script.named, each.line), owner=owner,
            )  # fmt: skip


def _given(call: Call) -> Mapping[str, Value]:
    """Return what a configuration is given by name; of trainers also the model and its rewards, which many write first."""
    if not call.last.endswith("Trainer"):
        return call.keywords
    names = ("model", "reward_funcs") if call.last in _REWARDED else ("model",)
    by_place = {
        name: value
        for name, value in zip(names, call.arguments, strict=False)
        if name not in call.keywords and (isinstance(value.value, str) or name != "model")
    }
    return {**by_place, **call.keywords}


def _used(script: Script, made: list[Call]) -> set[int]:
    """Return the calls whose objects are given to a trainer; all, where that is not known of any."""
    found = set()
    for call in made:
        if not call.last.endswith("Trainer"):
            continue
        found.add(id(call.node))
        for keyword in call.node.keywords:
            origin = script.names.maker_of(keyword.value, call.function)
            if origin is not None and origin.call is not None:
                found.add(id(origin.call))
    return found


def config_settings(config: Config) -> Iterator[Setting]:
    """Yield what a config file holds."""
    for value in config.values:
        key = ".".join(value.path)
        yield Setting(
            name=setting_name(config.framework, value.path, value.value), key=key, value=value.value, text=value.text,
            place=Place(config.named, value.line, key), owner=config.framework,
        )  # fmt: skip


def command_settings(command: Command) -> Iterator[Setting]:
    """Yield what a command gives."""
    for flag in command.flags:
        name, value = normal(flag.name.rpartition(".")[2]), flag.value
        if not flag.text and name.startswith("no_") and name != "no_cuda":  # how HfArgumentParser spells a false one
            name, value = name.removeprefix("no_"), False
        if command.is_sweep and "," in flag.text:  # several runs, each with another value
            value = UNKNOWN
        yield Setting(
            name=name, key=flag.key, value=value, text=flag.text, place=Place("command", 0, flag.key), owner="command"
        )

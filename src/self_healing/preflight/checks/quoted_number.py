"""The check `quoted-number`: numbers that are given as texts in scripts and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Config, Setting, Subject
from ..subject.readers import NUMBERS, is_yaml, turned_names, turns_texts
from ..tools import Tools
from ..training import trainings
from ..training.deepspeed_batch import deepspeed_batches

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_DEEPSPEED = frozenset(
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping steps_per_print".split()
)
_PARAMS = (("optimizer", "params"), ("scheduler", "params"))
"""Sections of DeepSpeed that are handed on as they are; the others have types of their own."""


class QuotedNumber(Check):
    """Numbers in scripts and JSON configs are not quoted.

    Neither dataclasses, JSON nor DeepSpeed turn a text into a number: `SFTConfig(learning_rate="2e-4")` is accepted and ends in the
    optimizer with `'<=' not supported between instances of 'float' and 'str'`. Flags of a command are read as numbers, as
    are configs of TRL's commands, and what a script reads with OmegaConf or pydantic or calls `float` on.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate=2e-4)\n"),
        Example('{"learning_rate": 0.0002, "output_dir": "7"}', "config.json"),
        Example('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}', "ds.json"),
        Example("trl sft --learning_rate 2e-4", "command"),
        Example('{"env": {"max_steps": "100"}, "name": "1e-4"}', "config.json"),
        Example('{"zero_optimization": {"stage": 2, "reduce_bucket_size": "200000000"}}', "ds.json"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate='2e-4')\n"),
        Example("from peft import LoraConfig\nLoraConfig(r='16')\n"),
        Example('{"model_name_or_path": "m", "learning_rate": "2e-4"}', "config.json"),
        Example('model_name_or_path = "m"\nmax_steps = "100"\n', "config.toml"),
        Example('{"training": {"learning_rate": "2e-4"}}', "config.json"),
        Example('{"zero_optimization": {}, "optimizer": {"params": {"lr": "2e-5"}}}', "ds.json"),
        Example('{"zero_optimization": {}, "train_batch_size": "16"}', "ds.json"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text that is a number; those of YAML files are another check's."""
        if subject.trainer is not None:
            return
        seen: set[tuple[Place, str]] = set()
        turned = turned_names(subject)
        read = {config.named for config in subject.configs if _is_left(subject, config)}
        given = [each for each in subject.settings if each.owner.endswith(("Config", "Arguments"))]
        given += [each for training in trainings(subject) for each in training.settings.values() if _can_be(each)]
        given += _deepspeed(subject, tools)
        for setting in given:
            value, source = setting.value, setting.place.source
            is_ours = setting.name in NUMBERS or setting.owner == "deepspeed"
            if not is_ours or not isinstance(value, str) or source in read or setting.key.rpartition(".")[2] in turned:
                continue
            if _NUMBER.fullmatch(value.strip()) and (setting.place, setting.name) not in seen:
                seen.add((setting.place, setting.name))
                yield self.error(
                    setting.place, f"{setting.key} is the text {value!r}, not a number", f"Write {setting.key} with {value.strip()}, without quotes"
                )  # fmt: skip


def _is_left(subject: Subject, config: Config) -> bool:
    """Say whether a file is left alone: those of YAML are another check's, and some readers turn texts into numbers."""
    is_turned = turns_texts(subject, replace(config, framework=""))  # what is said of frameworks is said of their YAML
    return is_yaml(config) or (is_turned and config.framework != "deepspeed")


def _can_be(setting: Setting) -> bool:
    sections = setting.key.lower().split(".")[:-1]
    return setting.place.source != "command" and not any(each in ("env", "secrets", "environment") for each in sections)


def _deepspeed(subject: Subject, tools: Tools) -> Iterator[Setting]:
    """Yield what DeepSpeed takes as it is: sizes, and the parameters of the optimizer and the schedule."""
    for batches in deepspeed_batches(subject, tools.cwd):
        found: list[tuple[tuple[str, ...], object]] = [((name,), batches.content.get(name)) for name in _DEEPSPEED]
        for first, second in _PARAMS:
            section = batches.content.get(first)
            params = section.get(second) if isinstance(section, Mapping) else None
            for name, value in params.items() if isinstance(params, Mapping) else ():
                found += [
                    ((first, second, str(name)), each) for each in (value if isinstance(value, list) else [value])
                ]
        for path, value in found:
            key = ".".join(path)
            yield Setting(
                name=key, key=key, value=value, text=str(value), place=batches.where(*path), owner="deepspeed"
            )

"""The check `quoted-number`: numbers that are given as texts in scripts and JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools
from ..training import trainings

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NUMBERS = frozenset(
    "learning_rate weight_decay warmup_steps warmup_ratio max_grad_norm adam_beta1 adam_beta2 adam_epsilon num_train_epochs max_steps \
    per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps logging_steps save_steps eval_steps \
    save_total_limit max_length seed beta temperature num_generations max_completion_length lora_r r lora_alpha \
    lora_dropout label_smoothing_factor neftune_noise_alpha dataloader_num_workers".split()
)


class QuotedNumber(Check):
    """Numbers in scripts and JSON configs are not quoted.

    Neither dataclasses nor JSON turn a text into a number: `SFTConfig(learning_rate="2e-4")` is accepted and ends in the
    optimizer with `'<=' not supported between instances of 'float' and 'str'`. Flags of a command are read as numbers.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate=2e-4)\n"),
        Example('{"learning_rate": 0.0002, "output_dir": "7"}', "config.json"),
        Example('{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}', "ds.json"),
        Example("trl sft --learning_rate 2e-4", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', learning_rate='2e-4')\n"),
        Example("from peft import LoraConfig\nLoraConfig(r='16')\n"),
        Example('{"model_name_or_path": "m", "learning_rate": "2e-4"}', "config.json"),
        Example('model_name_or_path = "m"\nmax_steps = "100"\n', "config.toml"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text that is a number; those of YAML files are another check's."""
        if subject.trainer is not None:
            return
        seen: set[tuple[Place, str]] = set()
        given = [each for each in subject.settings if each.owner.endswith(("Config", "Arguments"))]
        for training in trainings(subject):
            given += training.settings.values() if training.owner != "config" else ()
        for setting in given:
            value = setting.value
            is_yaml = setting.place.source.lower().endswith((".yaml", ".yml"))
            if (
                setting.name not in _NUMBERS
                or not isinstance(value, str)
                or is_yaml
                or setting.place.source == "command"
            ):
                continue
            if _NUMBER.fullmatch(value.strip()) and (setting.place, setting.name) not in seen:
                seen.add((setting.place, setting.name))
                yield self.error(
                    setting.place, f"{setting.key} is the text {value!r}, not a number", f"Write {setting.key} with {value.strip()}, without quotes"
                )  # fmt: skip

"""The check `number-is-text`: numbers of a YAML config that its reader takes for text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..subject.settings import normal
from ..tools import Tools
from ..training.readers import NUMBERS, turned_names, turns_texts

_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
_QUOTED = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_TEXTS = frozenset({"env", "environment", "secrets", "tags", "special_tokens"})
"""Sections whose values are texts to everybody."""
_OWN_READER = "import yaml\nfrom trl import SFTConfig\nSFTConfig(**yaml.safe_load(open('run.yaml')))\n"


class NumberIsText(Check):
    """Numbers in a YAML config are numbers to its reader.

    YAML 1.1, which PyYAML reads, wants a point in a number with an exponent and a sign behind its e: `2e-4` and `1.0e4` are
    texts, and so is whatever stands in quotes. Where a script loads the file by itself (`yaml.safe_load`, or transformers'
    `parse_yaml_file`) or its reader is not known, nothing turns them into numbers: training ends with `'<=' not supported
    between instances of 'float' and 'str'`, or compares texts in silence. Nothing is said where the reader turns them: TRL's
    parser and commands, Axolotl and LLaMA-Factory by the types of their fields (but not below `..._kwargs`, which have none),
    OmegaConf and with it Hydra by rules of their own, a script with pydantic, or one that calls `float` on the value.
    """

    passes = (
        Example("learning_rate: 2.0e-4\nname: 1e5-ablation\n", "config.yaml"),
        Example("model_name_or_path: x/y\ndataset_name: x/z\nlearning_rate: 2e-4\n", "config.yaml"),
        Example("base_model: x/y\nadapter: lora\nlearning_rate: 2e-4\n", "config.yaml"),
        Example("defaults: [_self_]\noptimizer:\n  lr: 3e-4\n", "config.yaml"),
        Example("trl sft --config run.yaml", "command", files={"run.yaml": "learning_rate: 2e-4\n"}),
        Example(
            "python train.py --config run.yaml",
            "command",
            files={
                "train.py": "config = OmegaConf.load('run.yaml')\n",
                "run.yaml": "defaults: []\nlearning_rate: 2e-4\n",
            },
        ),
    )
    fails = (
        Example("learning_rate: 2e-4\n", "config.yaml"),
        Example("optim:\n  lr: '1e-3'\n", "config.yaml"),
        Example("training:\n  learning_rate: '0.0002'\n", "config.yaml"),
        Example("model_name_or_path: m\noutput_dir: o\nlr_scheduler_kwargs:\n  min_lr: 1e-6\n", "config.yaml"),
        Example(
            "python train.py --config run.yaml",
            "command",
            files={"train.py": _OWN_READER, "run.yaml": "model_name_or_path: m\noutput_dir: o\nlearning_rate: 2e-4\n"},
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text that would be a number."""
        turned = turned_names(subject)
        for config in subject.configs:
            if config.path.suffix.lower() not in (".yaml", ".yml") or config.framework in ("job", "accelerate"):
                continue
            is_turned = turns_texts(subject, config)
            for value in config.values:
                has_type = not any(part.endswith("_kwargs") for part in value.path[:-1])
                if (
                    not isinstance(value.value, str)
                    or value.path[-1] in turned
                    or (is_turned and (has_type or config.framework not in ("trl", "axolotl")))
                    or not _is_number(value.path, value.value)
                ):
                    continue
                yield self.error(
                    Place(config.named, value.line, ".".join(value.path)), f"{'.'.join(value.path)}: {value.text} is a text to PyYAML, not a number",
                    f"Write {value.path[-1]}: {_with_point(value.value)}",
                )  # fmt: skip


def _is_number(path: tuple[str, ...], text: str) -> bool:
    if any(part.lower() in _TEXTS for part in path[:-1]):
        return False
    is_setting = normal(path[-1]) in NUMBERS
    return _EXPONENT.fullmatch(text) is not None or (is_setting and _QUOTED.fullmatch(text) is not None)


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    if not exponent:
        return mantissa
    point = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{point}e{sign}"

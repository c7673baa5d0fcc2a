"""The check `number-is-text`: numbers of a YAML config that its reader takes for text."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..subject.readers import is_number, is_yaml
from ..tools import Tools

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
        """Look at every text that would be a number; those that a reader turns are numbers already."""
        for config in subject.configs:
            if not is_yaml(config) or config.framework in ("job", "accelerate"):
                continue
            for value in config.values:
                if not isinstance(value.value, str) or not is_number(value.path, value.value):
                    continue
                yield self.error(
                    Place(config.named, value.line, ".".join(value.path)), f"{'.'.join(value.path)}: {value.text} is a text to PyYAML, not a number",
                    f"Write {value.path[-1]}: {_with_point(value.value)}",
                )  # fmt: skip


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    if not exponent:
        return mantissa
    point = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{point}e{sign}"

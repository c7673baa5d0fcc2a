"""The check `number-is-text`: numbers of a YAML config that its readers take for text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..tools import Tools

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")
_TURN_THEM = frozenset({"hydra", "trl", "axolotl", "llama-factory"})
"""Frameworks whose own readers make numbers of them."""
_PLAIN_READERS = frozenset({"safe_load", "full_load", "parse_yaml_file"})


class NumberIsText(Check):
    """Numbers in a YAML config are numbers to its reader.

    YAML 1.1, which PyYAML reads and with it transformers, wants a point in a number with an exponent and a sign behind its e:
    `2e-4` and `1.0e4` are texts. Where nothing turns them into numbers, training ends with `'<=' not supported between
    instances of 'str' and 'float'`, or compares texts in silence. Hydra reads them as numbers, and TRL, Axolotl and
    LLaMA-Factory turn them into numbers: their configs are left alone.
    """

    passes = (
        Example("learning_rate: 2.0e-4\nname: 1e5-ablation\n", "config.yaml"),
        Example("model_name_or_path: x/y\ndataset_name: x/z\nlearning_rate: 2e-4\n", "config.yaml"),
        Example("defaults: [_self_]\noptimizer:\n  lr: 3e-4\n", "config.yaml"),
    )
    fails = (Example("learning_rate: 2e-4\n", "config.yaml"), Example("optim:\n  lr: '1e-3'\n", "config.yaml"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text that would be a number."""
        is_read_plainly = any(True for _ in subject.calls(lambda call: call.last in _PLAIN_READERS))
        for config in subject.configs:
            is_turned = config.framework in _TURN_THEM and not is_read_plainly
            if config.path.suffix.lower() not in (".yaml", ".yml") or is_turned:
                continue
            for value in config.values:
                if isinstance(value.value, str) and _NUMBER.fullmatch(value.value):
                    yield self.error(
                        Place(config.named, value.line, ".".join(value.path)), f"{'.'.join(value.path)}: {value.text} is a text to PyYAML, not a number",
                        f"Write {value.path[-1]}: {_with_point(value.value)}",
                    )  # fmt: skip


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    point = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{point}e{sign}"

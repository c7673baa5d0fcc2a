"""The check `number-is-text`: numbers of a YAML config that its readers take for text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")


class NumberIsText(Check):
    """Numbers in a YAML config are numbers to PyYAML.

    YAML 1.1, which PyYAML reads and with it transformers, TRL and Axolotl, wants a point in a number with an exponent and a
    sign behind its e: `2e-4` and `1.0e4` are texts. Where nothing turns them into numbers, training ends with `'<=' not
    supported between instances of 'str' and 'float'`, or compares texts in silence.
    """

    passes = (Example("learning_rate: 2.0e-4\nname: 1e5-ablation\n", "config.yaml"),)
    fails = (Example("learning_rate: 2e-4\n", "config.yaml"), Example("optim:\n  lr: '1e-3'\n", "config.yaml"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every text that would be a number."""
        for config in subject.configs:
            if config.path.suffix.lower() not in (".yaml", ".yml"):
                continue
            for value in config.values:
                if isinstance(value.value, str) and _NUMBER.fullmatch(value.value):
                    where = next(s.place for s in subject.settings if s.place.line == value.line)
                    yield self.error(
                        where, f"{'.'.join(value.path)}: {value.text} is a text to PyYAML, not a number",
                        f"Write {value.path[-1]}: {_with_point(value.value)}",
                    )  # fmt: skip


def _with_point(text: str) -> str:
    mantissa, _, exponent = text.lower().partition("e")
    point = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = exponent if exponent[0] in "+-" else f"+{exponent}"
    return f"{point}e{sign}"

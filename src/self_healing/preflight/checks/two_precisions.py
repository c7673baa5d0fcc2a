"""The check `two-precisions`: fp16 and bf16 at once."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """from transformers import TrainingArguments
args = TrainingArguments(output_dir="out", {precision})
"""


class TwoPrecisions(HardwareCheck):
    """At most one of fp16 and bf16 is on.

    Both together end with `ValueError: At most one of fp16 and bf16 can be True, but not both` when the arguments are made.
    """

    passes = (
        Example(_SCRIPT.format(precision="bf16=True, fp16=False")),
        Example("bf16: auto\nfp16: false\n", "config.yaml"),
    )
    fails = (
        Example(_SCRIPT.format(precision="bf16=True, fp16=True")),
        Example("bf16: true\nfp16: true\n", "config.yaml"),
    )
    happens = "`ValueError: At most one of fp16 and bf16 can be True, but not both`"
    safe = "one of them: bf16=True on Ampere and newer, fp16=True on older GPUs"
    fast = "bf16=True alone"
    needs = "Ampere or newer"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at both, whatever the device is."""
        for first, second in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
            one, other = subject.setting(first), subject.setting(second)
            if one is not None and other is not None and one.value is True and other.value is True:
                yield self.error(
                    one.place, f"{one.key} and {other.key} are both on, of which only one may be",
                    f"Remove {one.key} on an Ampere GPU or newer (A10G, L4, A100, H100), {other.key} on an older one (T4, V100)",
                )  # fmt: skip

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Yield nothing: it does not depend on the device."""
        yield from ()

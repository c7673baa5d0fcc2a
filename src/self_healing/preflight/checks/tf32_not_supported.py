"""The check `tf32-not-supported`: TF32 on hardware without it."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """from transformers import TrainingArguments
args = TrainingArguments(output_dir="out", tf32={value})
"""


class Tf32NotSupported(HardwareCheck):
    """TF32 is asked for on a GPU that has it.

    `tf32=True` on a GPU before Ampere, on a CPU or on another maker's GPU ends with `ValueError: --tf32 requires Ampere or a newer
    GPU arch, cuda>=11 and torch>=1.7`.
    """

    passes = (
        Example(_SCRIPT.format(value=True), options={"gpu": "a100"}),
        Example(_SCRIPT.format(value=False), options={"gpu": "t4"}),
    )
    fails = (
        Example(_SCRIPT.format(value=True), options={"gpu": "t4"}),
        Example(_SCRIPT.format(value=True), options={"gpu": "cpu"}),
    )
    happens = "`ValueError: --tf32 requires Ampere or a newer GPU arch, cuda>=11 and torch>=1.7`"
    safe = "no tf32 at all (leave the argument out)"
    fast = "tf32=True, for what is computed in 32 bit"
    needs = "NVIDIA's Ampere or newer: A10G, L4, A100, H100"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the switch."""
        asked = subject.setting("tf32")
        if asked is not None and asked.value is True and not target.device.has_tf32:
            yield self.error(
                asked.place, f"{asked.key}={asked.text or True}: {target.device.name} has no TF32", self.advice(tools)
            )

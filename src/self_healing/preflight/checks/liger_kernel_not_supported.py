"""The check `liger-kernel-not-supported`: Liger's kernels without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """from transformers import TrainingArguments
args = TrainingArguments(output_dir="out", use_liger_kernel={value})
"""


class LigerKernelNotSupported(HardwareCheck):
    """Liger's kernels are used where there is a GPU.

    They are written in Triton, which has nothing to run on without one: the first step ends with `RuntimeError: 0 active drivers
    ([]). There should only be one`.
    """

    passes = (
        Example(_SCRIPT.format(value=True), options={"gpu": "a10g"}),
        Example(_SCRIPT.format(value=False), options={"gpu": "cpu"}),
    )
    fails = (Example(_SCRIPT.format(value=True), options={"gpu": "cpu"}),)
    happens = "`RuntimeError: 0 active drivers ([]). There should only be one` at the first step"
    safe = "use_liger_kernel=False"
    fast = "use_liger_kernel=True, less memory for the loss"
    needs = "a GPU that Triton compiles for"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the switches."""
        asked = subject.setting("use_liger_kernel", "use_liger_loss", "use_liger")
        if asked is not None and asked.value is True and target.device.is_cpu:
            yield self.error(
                asked.place,
                f"{asked.key}={asked.text or True} needs a GPU, and the run is for a CPU ({target.said_by})",
                self.advice(tools),
            )

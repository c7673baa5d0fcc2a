"""The check `cpu-without-half-precision`: mixed precision of a GPU where there is none."""

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


class CpuWithoutHalfPrecision(HardwareCheck):
    """Mixed precision is asked for where there is a GPU, or in the way a CPU can do it.

    Without a GPU `bf16=True` ends with `Your setup doesn't support bf16/gpu. You need to assign use_cpu`, and `fp16=True` with
    `fp16 mixed precision requires a GPU`, before the first step.
    """

    passes = (
        Example(_SCRIPT.format(precision="bf16=True, use_cpu=True")),
        Example(_SCRIPT.format(precision="learning_rate=1e-4"), options={"gpu": "cpu"}),
    )
    fails = (
        Example(_SCRIPT.format(precision="bf16=True"), options={"gpu": "cpu"}),
        Example(_SCRIPT.format(precision="fp16=True"), options={"gpu": "cpu"}),
        Example(_SCRIPT.format(precision="fp16=True, use_cpu=True")),
    )
    happens = "`You need to assign use_cpu`, or `fp16 mixed precision requires a GPU`, before the first step"
    safe = "fp16=False, bf16=False, use_cpu=True"
    fast = "bf16=True or fp16=True"
    needs = "a GPU; with use_cpu=True a CPU does bf16 too"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at both kinds."""
        if not target.device.is_cpu:
            return
        fp16, bf16 = subject.setting("fp16"), subject.setting("bf16")
        if fp16 is not None and fp16.value is True:
            yield self.error(
                fp16.place,
                f"{fp16.key}={fp16.text or True} needs a GPU, and the run is for a CPU ({target.said_by})",
                self.advice(tools),
            )
        if bf16 is not None and bf16.value is True and not subject.is_on("use_cpu", "no_cuda"):
            message = f"{bf16.key}={bf16.text or True} without use_cpu=True ends at once on a CPU ({target.said_by})"
            yield self.error(bf16.place, message, self.advice(tools))

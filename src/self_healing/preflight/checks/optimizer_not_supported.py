"""The check `optimizer-not-supported`: 8-bit and paged optimizers on hardware they do not run on."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools
from ..training.optimizers import is_of_bitsandbytes

_SCRIPT = """from transformers import TrainingArguments
args = TrainingArguments(output_dir="out", optim="{optim}")
"""


class OptimizerNotSupported(HardwareCheck):
    """The optimizer runs on the device.

    8-bit and paged optimizers are kernels of bitsandbytes for NVIDIA's GPUs: on a CPU the first update ends with an error about
    missing kernels or devices, and AMD's GPUs need a build of bitsandbytes for ROCm. Paged ones take the memory of the host besides.
    """

    passes = (
        Example(_SCRIPT.format(optim="adamw_bnb_8bit"), options={"gpu": "t4"}),
        Example(_SCRIPT.format(optim="adamw_torch"), options={"gpu": "cpu"}),
    )
    fails = (
        Example(_SCRIPT.format(optim="adamw_bnb_8bit"), options={"gpu": "cpu"}),
        Example(_SCRIPT.format(optim="paged_adamw_8bit"), options={"gpu": "mi300x"}),
        Example("hf jobs run --flavor cpu-basic image trl sft --optim paged_adamw_32bit", "command"),
    )
    happens = "the first update ends with an error of bitsandbytes about missing kernels"
    safe = 'optim="adamw_torch"'
    fast = "8-bit states, a quarter of the memory; paged states, which lie in the memory of the host when it is short"
    needs = "an NVIDIA GPU (on MI300X a build of bitsandbytes for ROCm)"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the optimizer's name."""
        asked = subject.setting("optim")
        if asked is None or not isinstance(asked.value, str) or not is_of_bitsandbytes(asked.value):
            return
        if target.device.is_cpu:
            yield self.error(
                asked.place,
                f"{asked.value} needs a GPU, and the run is for a CPU ({target.said_by})",
                self.advice(tools),
            )
        elif not target.device.is_nvidia:
            message = (
                f"{asked.value} on {target.device.name} needs a build of bitsandbytes for ROCm; the usual one has none"
            )
            yield self.warning(asked.place, message, self.advice(tools))

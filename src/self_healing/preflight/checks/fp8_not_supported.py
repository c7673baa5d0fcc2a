"""The check `fp8-not-supported`: fp8 on hardware without it."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.asked import asked_fp8
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools


class Fp8NotSupported(HardwareCheck):
    """fp8 is asked for on hardware that multiplies it.

    Only Ada, Hopper and newer GPUs do (L4, L40S, RTX 4090, H100, H200), and AMD's MI300. On others Transformer Engine ends with `Device
    compute capability 8.9 or higher required for FP8 execution`, and torch with `torch._scaled_mm is only supported on CUDA devices with
    compute capability >= 9.0 or 8.9`.
    """

    passes = (
        Example("mixed_precision: fp8\n", "accelerate.yaml", options={"gpu": "h100"}),
        Example("mixed_precision: bf16\n", "accelerate.yaml", options={"gpu": "a100"}),
    )
    fails = (
        Example("mixed_precision: fp8\n", "accelerate.yaml", options={"gpu": "a100"}),
        Example("base_model: x/y-1B\nfp8: true\n", "config.yaml", options={"gpu": "a10g"}),
        Example("from accelerate import Accelerator\nAccelerator(mixed_precision='fp8')\n", options={"gpu": "a100"}),
        Example("accelerate launch --mixed_precision fp8 -m trl.scripts.sft", "command", options={"gpu": "t4"}),
    )
    happens = "`Device compute capability 8.9 or higher required for FP8 execution`"
    safe = "bf16 (mixed_precision: bf16), on GPUs before Ampere fp16"
    fast = "fp8, up to twice as fast in large matrices"
    needs = "Ada, Hopper or newer (L4, L40S, RTX 4090, H100, H200), or MI300X"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the precision of accelerate, and at Axolotl's switch."""
        if target.device.has_fp8:
            return
        for place, key in asked_fp8(subject):
            yield self.error(
                place, f"{key}: {target.device.name} ({target.device.architecture}) has no fp8", self.advice(tools)
            )

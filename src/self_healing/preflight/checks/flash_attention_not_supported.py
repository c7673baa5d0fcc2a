"""The check `flash-attention-not-supported`: FlashAttention on hardware it is not made for."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck, asked_attention
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("org/model-1B", attn_implementation="{which}")
"""


class FlashAttentionNotSupported(HardwareCheck):
    """FlashAttention is asked for on a GPU that it runs on.

    FlashAttention 2 needs Ampere or newer: on a T4 or V100 the first step ends with `RuntimeError: FlashAttention only supports
    Ampere GPUs or newer`, on a CPU loading does. FlashAttention 3 is written for Hopper alone. PyTorch's own attention (sdpa)
    works everywhere, and uses a flash kernel where there is one.
    """

    passes = (
        Example(_SCRIPT.format(which="flash_attention_2"), options={"gpu": "a10g"}),
        Example(_SCRIPT.format(which="flash_attention_3"), options={"gpu": "h100"}),
        Example(_SCRIPT.format(which="sdpa"), options={"gpu": "t4"}),
    )
    fails = (
        Example(_SCRIPT.format(which="flash_attention_2"), options={"gpu": "t4"}),
        Example(_SCRIPT.format(which="flash_attention_3"), options={"gpu": "a100"}),
        Example("base_model: x/y-1B\nflash_attention: true\n", "config.yaml", options={"gpu": "v100"}),
        Example(
            "trl sft --model_name_or_path x/y-1B --attn_implementation flash_attention_2",
            "command",
            options={"gpu": "cpu"},
        ),
    )
    happens = "`RuntimeError: FlashAttention only supports Ampere GPUs or newer`; FlashAttention 3 has kernels for Hopper only"
    safe = 'attn_implementation="sdpa"'
    fast = "FlashAttention 2 or 3"
    needs = "Ampere or newer (A10G, L4, A100, H100), for FlashAttention 3 Hopper (H100, H200)"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the attention that is asked for."""
        device = target.device
        asked = asked_attention(subject)
        if asked is None:
            return
        which = str(asked.value)
        is_third = "flash_attention_3" in which or "flash-attn3" in which
        is_second = not is_third and ("flash_attention_2" in which or "flash-attn" in which)
        if is_third and not device.has_flash_attention_3:
            yield self.error(
                asked.place, f"FlashAttention 3 runs on Hopper only, not on {device.name}", self.advice(tools)
            )
        elif is_second and not device.has_flash_attention_2:
            kind = device.architecture if not device.is_cpu else "no GPU"
            yield self.error(
                asked.place, f"FlashAttention 2 does not run on {device.name} ({kind})", self.advice(tools)
            )

"""The check `flash-attention-missing`: FlashAttention without its package."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck, asked_attention, is_missing
from ..hardware.target import Target, target_of
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("org/model-1B", attn_implementation="flash_attention_2")
"""
_AXOLOTL = "base_model: x/y-1B\nflash_attention: true\n"
_BARE = {"gpus": ["NVIDIA A10G"], "packages": {}}


class FlashAttentionMissing(HardwareCheck):
    """What asks for FlashAttention 2 has its package.

    Without it loading the model ends with `ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the
    following error: the package flash_attn seems to be not installed`. Newer versions of transformers can take the kernel from the Hub,
    where the package `kernels` is there.
    """

    passes = (
        Example(_SCRIPT, machine={**_BARE, "packages": {"flash-attn": "2.8.3"}}),
        Example(_SCRIPT, machine={**_BARE, "packages": {"kernels": "0.11.0"}}),
        Example(_SCRIPT.replace("flash_attention_2", "sdpa"), machine=_BARE),
        Example(_AXOLOTL.replace("true", "false"), "config.yaml", machine=_BARE),
    )
    fails = (Example(_SCRIPT, machine=_BARE), Example(_AXOLOTL, "config.yaml", machine=_BARE))
    happens = "`ImportError: FlashAttention2 has been toggled on, but it cannot be used`"
    safe = 'attn_implementation="sdpa"'
    fast = "FlashAttention 2"
    needs = "the package flash-attn (built for the installed torch and CUDA), or kernels"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is installed, where this machine is the one that runs it."""
        yield from self.judge(subject, target_of(subject, tools), tools)

    def judge(self, subject: Subject, target: Target | None, tools: Tools) -> Iterator[Finding]:
        """Compare what is asked for with what is there."""
        asked = asked_attention(subject)
        if (
            asked is None
            or asked.value != "flash_attention_2"
            or not is_missing(subject, target, tools, "flash-attn", "kernels")
        ):
            return
        yield self.error(
            asked.place, "FlashAttention 2 needs the package flash-attn, which this machine does not have",
            f"{self.advice(tools)} Or run `pip install flash-attn --no-build-isolation`, which builds it for the torch and CUDA that are here.",
        )  # fmt: skip

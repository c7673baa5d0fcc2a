"""The check `fp16-over-quantized`: adapters on quantized weights, trained by TRL under fp16 mixed precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.target import Target
from ..scripts.syntax import syntax_of
from ..subject import Subject
from ..tools import Tools

_TRL = frozenset({"sft", "dpo", "grpo", "kto", "rloo", "reward"})
_IN_32_BIT = (
    "for p in trainer.model.parameters():\n    if p.requires_grad:\n        p.data = p.data.float()  # the adapters"
)
_SCRIPT = """import torch
from peft import LoraConfig
from transformers import BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16)
args = SFTConfig(output_dir="out", {precision}, model_init_kwargs={{"quantization_config": bits}})
trainer = SFTTrainer("org/model-7B", args=args, train_dataset=data, peft_config=LoraConfig(r=8))
"""


class Fp16OverQuantized(HardwareCheck):
    """Adapters on quantized weights are not in bf16 where gradients are scaled.

    TRL's trainers turn adapters on weights of 4 or 8 bit into bf16 (1.16 does), and the gradient scaler of `fp16=True` takes no
    gradients in bf16: the first step ends with `NotImplementedError: "_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for
    'BFloat16'`.
    """

    passes = (
        Example(_SCRIPT.format(precision="bf16=True")),
        Example(_SCRIPT.format(precision="fp16=True") + _IN_32_BIT + "\n"),
        Example(_SCRIPT.format(precision="fp16=True").replace("load_in_4bit=True", "load_in_4bit=False")),
        Example(
            _SCRIPT.format(precision="fp16=True").replace("trl", "transformers").replace("SFT", "").replace("Config(output", "TrainingArguments(output")
        ),
        Example("base_model: org/model-7B\nadapter: qlora\nload_in_4bit: true\nfp16: true\ndatasets: [{path: a/b, type: alpaca}]\n", "config.yaml"),
    )  # fmt: skip
    fails = (
        Example(_SCRIPT.format(precision="fp16=True")),
        Example("trl sft --model_name_or_path org/model-7B --dataset_name a/b --use_peft --load_in_4bit --fp16 True", "command"),
    )  # fmt: skip
    happens = "`\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'` at the first step"
    safe = "fp16=False, or adapters in 32 bit"
    fast = "fp16=True with weights of 4 or 8 bit in TRL"
    needs = "bf16=True instead (Ampere or newer), or adapters that are turned into 32 bit once the trainer is made"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at precision and weights, whatever the device is."""
        is_quantized = subject.is_on("load_in_4bit") or subject.is_on("load_in_8bit")
        fp16 = subject.setting("fp16")
        is_axolotl = any(config.get("base_model") for config in subject.configs)
        if fp16 is None or fp16.value is not True or not is_quantized or is_axolotl or subject.method not in _TRL:
            return
        if any(_turns_into_32_bit(node) for script in subject.scripts for node in syntax_of(script).nodes):
            return
        in_a_script = (
            "after the trainer is made:\n" + _IN_32_BIT if subject.scripts else "which takes a script of your own"
        )
        yield self.error(
            fp16.place, "fp16=True scales gradients, and TRL turns adapters on quantized weights into bf16, which the scaler does not take: the first step fails",
            f"Write bf16=True, fp16=False where the GPU has bf16 (Ampere or newer). Elsewhere write fp16=False, or turn the adapters into 32 bit, {in_a_script}",
        )  # fmt: skip

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Yield nothing: it does not depend on the device."""
        yield from ()


def _turns_into_32_bit(node: ast.AST) -> bool:
    """Say whether something is turned into 32 bit: `p.data.float()`, `.to(torch.float32)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    is_to = node.func.attr == "to" and any("float32" in ast.unparse(each) for each in node.args)
    return is_to or (node.func.attr == "float" and not node.args)

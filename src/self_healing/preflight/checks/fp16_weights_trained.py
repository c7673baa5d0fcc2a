"""The check `fp16-weights-trained`: weights of 16 bit under fp16 mixed precision."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck, said
from ..hardware.target import Target
from ..subject import Subject
from ..tools import Tools

_SCRIPT = """import torch
from transformers import AutoModelForCausalLM, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("org/model-1B", torch_dtype=torch.{dtype})
args = TrainingArguments(output_dir="out", fp16=True)
"""


class Fp16WeightsTrained(HardwareCheck):
    """Weights that are trained under fp16 mixed precision are loaded in 32 bit.

    With weights in fp16 the gradients are fp16 too, which the gradient scaler refuses: the first step ends with `ValueError:
    Attempting to unscale FP16 gradients.` Adapters are not concerned: PEFT holds them in 32 bit.
    """

    passes = (
        Example(_SCRIPT.format(dtype="float32")),
        Example(_SCRIPT.format(dtype="float16") + "from peft import LoraConfig\nlora = LoraConfig(r=8)\n"),
    )
    fails = (
        Example(_SCRIPT.format(dtype="float16")),
        Example("trl sft --model_name_or_path org/model-1B --dtype float16 --fp16 True", "command"),
    )
    happens = "`ValueError: Attempting to unscale FP16 gradients.` at the first step"
    safe = "dtype=torch.float32 where the model is loaded"
    fast = "weights in 16 bit"
    needs = "bf16=True with dtype=torch.bfloat16 (Ampere or newer), or adapters (LoRA)"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the dtype, whatever the device is."""
        has_adapters = any(call.last in _ADAPTERS for _, call in subject.calls()) or subject.is_on("use_peft")
        if not subject.is_on("fp16") or has_adapters or subject.setting("adapter", "peft_config") is not None:
            return
        dtype = said(subject, "dtype", "torch_dtype")
        if dtype is not None and _FP16.search(dtype.text):
            yield self.error(
                dtype.place, "the weights are loaded in float16 and trained with fp16=True, whose gradient scaler refuses fp16 gradients",
                self.advice(tools),
            )  # fmt: skip

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Yield nothing: it does not depend on the device."""
        yield from ()


_ADAPTERS = frozenset({"LoraConfig", "get_peft_model", "PeftModel", "prepare_model_for_kbit_training"})
_FP16 = re.compile(r"(?<!b)float16|\bhalf\b|\bfp16\b")

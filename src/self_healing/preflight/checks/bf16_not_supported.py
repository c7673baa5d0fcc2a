"""The check `bf16-not-supported`: bf16 on a GPU that only emulates it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..check import Example
from ..finding import Finding, Place
from ..hardware.check import HardwareCheck
from ..hardware.in_calls import bf16_in_calls
from ..hardware.reading import is_training
from ..hardware.target import Target
from ..subject import Setting, Subject
from ..tools import Tools

_SCRIPT = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", {precision})
"""
_AUTOCAST = """import torch
with torch.autocast("cuda", dtype=torch.{dtype}):
    loss = model(x)
"""


class Bf16NotSupported(HardwareCheck):
    """bf16 is asked for on a GPU that computes it.

    NVIDIA's GPUs before Ampere (T4, V100, P100) have no bf16: older versions of torch end with `Your setup doesn't support bf16/gpu. You
    need Ampere+ GPU`, newer ones emulate it, so that a run takes several times as long. TRL turns bf16 on where nothing is said.
    """

    passes = (
        Example(_SCRIPT.format(precision="bf16=True"), options={"gpu": "a10g"}),
        Example(_SCRIPT.format(precision="fp16=True"), options={"gpu": "t4"}),
        Example(_AUTOCAST.format(dtype="float16"), options={"gpu": "t4"}),
        Example(_AUTOCAST.format(dtype="bfloat16"), options={"gpu": "l4"}),
    )
    fails = (
        Example(_SCRIPT.format(precision="bf16=True"), options={"gpu": "t4"}),
        Example(_AUTOCAST.format(dtype="bfloat16"), options={"gpu": "t4"}),
        Example("hf jobs run --flavor t4-small image trl sft --bf16 True", "command"),
        Example("bf16: true\nbase_model: x/y-1B\n", "config.yaml", options={"gpu": "v100"}),
    )
    happens = "`Your setup doesn't support bf16/gpu`, or bf16 is emulated and the run takes several times as long"
    safe = "fp16=True, bf16=False"
    fast = "bf16=True, which needs no loss scaling"
    needs = "Ampere or newer: A10G, L4, A100, H100, RTX 3090"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at what is computed in bf16."""
        if target.device.has_bf16:
            return
        why = f"{target.device.name} ({target.device.architecture}) has no bf16: it fails or is emulated, several times slower"
        asked = subject.setting("bf16")
        if asked is not None and asked.value in (True, "auto", "full"):
            fix = "fp16: true and bf16: false" if asked.place.key and asked.owner != "command" else ""
            yield self.warning(asked.place, f"{asked.key}={asked.text or True}: {why}", self.advice(tools, fix))
        for setting in _precisions(subject):
            fix = f"{setting.key.lstrip('-')}: fp16"
            yield self.warning(setting.place, f"{setting.key}={setting.text}: {why}", self.advice(tools, fix))
        in_calls = list(bf16_in_calls(subject, trains=_trains(subject)))
        for place, written, instead in in_calls:
            yield self.warning(place, f"{written}: {why}", self.advice(tools, instead))
        compute = subject.setting("bnb_4bit_compute_dtype")
        if compute is not None and "bfloat16" in compute.text:
            fix = "bnb_4bit_compute_dtype=torch.float16"
            yield self.warning(compute.place, f"{compute.key}={compute.text}: {why}", self.advice(tools, fix))
        if asked is None and compute is None and not in_calls and not subject.is_on("fp16"):
            for script, call in subject.calls(
                lambda call: call.last in _BF16_BY_DEFAULT and not call.has_unknown_keywords
            ):
                yield self.info(
                    Place(script.named, call.line), f"{call.last} turns bf16 on where nothing is said, and {why}",
                    self.advice(tools, "fp16=True"),
                )  # fmt: skip


def _trains(subject: Subject) -> bool:
    return is_training(subject) or any(call.last == "backward" for _, call in subject.calls())


def _precisions(subject: Subject) -> Iterator[Setting]:
    """Yield what is said to accelerate, and what weights that are only named are loaded in."""
    for name, values in (("mixed_precision", ("bf16",)), ("dtype", ("bfloat16",)), ("torch_dtype", ("bfloat16",))):
        setting = subject.setting(name)
        if setting is not None and setting.value in values and setting.owner != "Accelerator":
            yield setting
    if subject.command is not None:
        for flag in subject.command.launcher_flags:
            if flag.name == "mixed_precision" and flag.text == "bf16":
                yield Setting(
                    name=flag.name, key=flag.key, value=flag.value, text=flag.text, place=Place("command", 0, flag.key)
                )
    kwargs = subject.setting("model_init_kwargs")
    if kwargs is not None and isinstance(kwargs.value, dict):
        for name in ("dtype", "torch_dtype"):
            if kwargs.value.get(name) == "bfloat16":
                yield replace(kwargs, key=f"model_init_kwargs {name}", text="bfloat16")


_BF16_BY_DEFAULT = frozenset({"SFTConfig", "DPOConfig", "GRPOConfig", "KTOConfig", "RLOOConfig", "RewardConfig"})

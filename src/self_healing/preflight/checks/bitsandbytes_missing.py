"""The check `bitsandbytes-missing`: quantization or 8-bit optimizers without bitsandbytes."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck, is_missing
from ..hardware.target import Target, target_of
from ..subject import Subject
from ..tools import Tools
from ..training.optimizers import is_of_bitsandbytes

_SCRIPT = """from trl import SFTConfig
args = SFTConfig(output_dir="out", optim="{optimizer}")
"""
_LOADED = "from transformers import BitsAndBytesConfig\nconfig = BitsAndBytesConfig(load_in_4bit=True)\n"
_BARE = {"gpus": ["NVIDIA A10G"], "packages": {}}


class BitsandbytesMissing(HardwareCheck):
    """What uses bitsandbytes has it.

    8-bit and paged optimizers end with `ImportError: You need to install bitsandbytes in order to use bitsandbytes optimizers`,
    `load_in_4bit` and `load_in_8bit` with `ImportError: Using bitsandbytes 4-bit quantization requires bitsandbytes`, after the model
    has been fetched.
    """

    passes = (
        Example(_SCRIPT.format(optimizer="adamw_torch"), machine=_BARE),
        Example(_SCRIPT.format(optimizer="adamw_bnb_8bit"), machine={**_BARE, "packages": {"bitsandbytes": "0.49.0"}}),
        Example(_SCRIPT.format(optimizer="adamw_bnb_8bit"), machine={**_BARE, "gpus": []}),
    )
    fails = (Example(_SCRIPT.format(optimizer="adamw_bnb_8bit"), machine=_BARE), Example(_LOADED, machine=_BARE))
    happens = "`ImportError: You need to install bitsandbytes`, after the model has been fetched"
    safe = 'optim="adamw_torch", and weights in 16 bit'
    fast = "8-bit optimizers and 4-bit weights, which save most of their memory"
    needs = "the package bitsandbytes"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is installed, where this machine is the one that runs it."""
        yield from self.judge(subject, target_of(subject, tools), tools)

    def judge(self, subject: Subject, target: Target | None, tools: Tools) -> Iterator[Finding]:
        """Compare what is asked for with what is there."""
        optimizer = subject.setting("optim")
        asked = [optimizer] if optimizer is not None and is_of_bitsandbytes(str(optimizer.value)) else []
        asked += [
            setting
            for name in ("load_in_4bit", "load_in_8bit")
            if (setting := subject.setting(name)) is not None and setting.value is True
        ]
        if not asked or not is_missing(subject, target, tools, "bitsandbytes"):
            return
        for setting in asked:
            yield self.error(
                setting.place, f"{setting.key}={setting.text or True} needs bitsandbytes, and it is not installed",
                f"Run `pip install -U bitsandbytes`, or do without: {self.safe}",
            )  # fmt: skip

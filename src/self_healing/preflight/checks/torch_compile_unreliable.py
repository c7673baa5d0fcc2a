"""The check `torch-compile-unreliable`: torch.compile on GPUs where it is known to fail."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.check import HardwareCheck
from ..hardware.in_calls import compiled_in_calls
from ..hardware.target import Target
from ..options import Scenario
from ..subject import Setting, Subject
from ..tools import Tools

_SCRIPT = """from trl import SFTConfig
args = SFTConfig(output_dir="out", {more})
"""


class TorchCompileUnreliable(HardwareCheck):
    """torch.compile is used where it is reliable.

    On a T4 or A10G compiled training has ended with errors of the compiler that look like faults of the data (`Triton ... out of
    resource: shared memory`, `BackendCompilerFailed`), for a gain of some 20 % that is seen on an H100. Hours have been lost looking
    for the cause elsewhere.
    """

    passes = (
        Example(_SCRIPT.format(more="torch_compile=True"), options={"gpu": "h100"}),
        Example(_SCRIPT.format(more="torch_compile=False"), options={"gpu": "t4"}),
        Example("import torch\nif fast():\n    model = torch.compile(model)\n", options={"gpu": "t4"}),
        Example(_SCRIPT.format(more="torch_compile=True"), options={"gpu": "a10g", "scenario": "proven"}),
    )
    fails = (
        Example(_SCRIPT.format(more="torch_compile=True"), options={"gpu": "t4"}),
        Example(_SCRIPT.format(more="torch_compile=True"), options={"gpu": "a10g"}),
        Example("import torch\nmodel = make()\nmodel = torch.compile(model)\n", options={"gpu": "t4"}),
        Example("import torch\n@torch.compile\ndef step(x):\n    return x\n", options={"gpu": "a10g"}),
        Example("hf jobs run --flavor t4-medium image trl sft --torch_compile True", "command"),
    )
    happens = "errors of the compiler (`BackendCompilerFailed`, `out of resource: shared memory`) that look like faults of the data"
    safe = "torch_compile=False"
    fast = "torch_compile=True, some 20 % faster on an H100"
    needs = "A100, H100 or H200, after a short run with it has worked"

    def judge(self, subject: Subject, target: Target, tools: Tools) -> Iterator[Finding]:
        """Look at the switch; a run that is proven on an A10G may keep it."""
        device = target.device
        is_old = device.capability < (8, 0)
        is_small = device.capability == (8, 6) and tools.options.scenario is not Scenario.PROVEN
        if not device.is_nvidia or not (is_old or is_small):
            return
        known = f"is known to fail on {device.name}, with errors that do not name it"
        asked = _asked(subject)
        if asked is not None:
            yield self.warning(asked.place, f"{asked.key}={asked.text or True} {known}", self.advice(tools))
        for place, written in compiled_in_calls(subject):
            yield self.warning(place, f"{written} {known}", self.advice(tools, f"the model without {written}"))


def _asked(subject: Subject) -> Setting | None:
    """Return the setting that has the model compiled: the switch, or a mode or backend, which turn it on as well."""
    switch = subject.setting("torch_compile")
    if switch is not None:
        return switch if switch.value is True else None
    for name in ("torch_compile_mode", "torch_compile_backend", "dynamo_backend"):
        setting = subject.setting(name)
        if setting is not None and isinstance(setting.value, str) and setting.value.lower() not in _NOT_COMPILED:
            return setting
    return None


_NOT_COMPILED = frozenset({"", "no", "none", "null", "eager", "aot_eager"})

"""The check `fp8-package-missing`: fp8 without a package that computes in it."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Example
from ..finding import Finding
from ..hardware.asked import asked_fp8, fp8_packages
from ..hardware.check import HardwareCheck, is_missing
from ..hardware.target import Target, target_of
from ..subject import Subject
from ..tools import Tools

_BARE = {"gpus": ["NVIDIA H100"], "packages": {"accelerate": "1.12.0"}}
_CONFIG = "compute_environment: LOCAL_MACHINE\nmixed_precision: {}\n"
_ENGINE = _CONFIG.format("fp8") + "fp8_config:\n  backend: TE\n"
_LAUNCH = "accelerate launch --mixed_precision fp8 -m sft"


class Fp8PackageMissing(HardwareCheck):
    """What asks for fp8 has a package that computes in it.

    torch alone trains in 16 bit at least. accelerate takes torchao, Transformer Engine or MS-AMP for it, and without one of them ends with
    `ValueError: Using fp8 precision requires transformer_engine or MS-AMP to be installed`, before the model is loaded.
    """

    passes = (
        Example(_CONFIG.format("fp8"), "accelerate.yaml", machine={**_BARE, "packages": {"torchao": "0.14.0"}}),
        Example(_ENGINE, "accelerate.yaml", machine={**_BARE, "packages": {"transformer-engine": "2.9.0"}}),
        Example(_CONFIG.format("bf16"), "accelerate.yaml", machine=_BARE),
        Example(_LAUNCH, "command", machine={**_BARE, "gpus": []}),
        Example(f"ssh node {_LAUNCH}", "command", machine=_BARE),
    )
    fails = (
        Example(_CONFIG.format("fp8"), "accelerate.yaml", machine=_BARE),
        Example(_ENGINE, "accelerate.yaml", machine={**_BARE, "packages": {"torchao": "0.14.0"}}),
        Example(_LAUNCH, "command", machine=_BARE),
        Example("base_model: x/y-1B\nfp8: true\n", "config.yaml", machine=_BARE),
    )
    happens = "`ValueError: Using fp8 precision requires transformer_engine or MS-AMP to be installed`"
    safe = "mixed_precision: bf16"
    fast = "fp8"
    needs = "the package torchao, or transformer-engine (fp8_backend: TE)"

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what is installed, where this machine is the one that runs it."""
        yield from self.judge(subject, target_of(subject, tools), tools)

    def judge(self, subject: Subject, target: Target | None, tools: Tools) -> Iterator[Finding]:
        """Compare what is asked for with what is there."""
        packages = fp8_packages(subject)
        if target is not None and not target.device.has_fp8:  # another check says so
            return
        for place, key in asked_fp8(subject):
            if is_missing(subject, target, tools, *packages):
                first = packages[0]
                build = " --no-build-isolation" if first == "transformer-engine" else ""
                extra = "[pytorch]" if first == "transformer-engine" else ""
                yield self.error(
                    place, f"{key}: fp8 needs {first}, and it is not installed",
                    f"{self.advice(tools)} Or run `pip install{build} {first}{extra}`.",
                )  # fmt: skip

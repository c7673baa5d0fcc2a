"""The check `torch-unfit-for-gpu`: the installed torch can use the GPU that is here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..surroundings.driver import torch_index
from ..surroundings.here import shares_our_packages
from ..tools import Tools

_NONE_FITS = "Update the driver: it is older than every build of torch that can be had"
_BUILD = re.compile(r"\+cu(\d+)(\d)$")


class TorchUnfitForGpu(Check):
    """The installed torch can use the GPU that is here.

    A build for a newer CUDA than the driver knows says `The NVIDIA driver on your system is too old`; one without CUDA trains on
    the processor in silence, a hundred times slower, or ends with `Torch not compiled with CUDA enabled`.
    """

    passes = (
        Example("python -m sft", "command", machine={"gpus": ["NVIDIA H100"], "driver_cuda": (12, 4), "packages": {"torch": "2.6.0+cu126"}}),
        Example("python -m sft", "command", machine={"gpus": [], "packages": {"torch": "2.6.0+cpu"}}),
        Example("python -m sft --use_cpu true", "command", machine={"gpus": ["Tesla T4"], "driver_cuda": (12, 4), "packages": {"torch": "2.6.0+cpu"}}),
    )  # fmt: skip
    fails = (
        Example("python -m sft", "command", machine={"gpus": ["NVIDIA H100"], "driver_cuda": (12, 4), "packages": {"torch": "2.9.0+cu130"}}),
        Example("python -m sft", "command", machine={"gpus": ["Tesla T4"], "driver_cuda": (12, 4), "packages": {"torch": "2.6.0+cpu"}}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the build with the driver; within one major version of CUDA any driver will do."""
        is_for_cpu = (tools.options.gpu or "").lower() == "cpu" or subject.is_on("use_cpu", "no_cuda")
        if is_for_cpu or not shares_our_packages(subject, tools):
            return
        torch = tools.machine.version("torch")
        if torch is None or not tools.machine.gpus:
            return
        where, name = Place("environment", key="torch"), tools.machine.gpus[0]
        driver = tools.machine.driver_cuda
        if torch.endswith("+cpu"):
            yield self.warning(
                where, f"torch {torch} was built without CUDA, and here is a {name}",
                f"{_install(driver or (12, 6))}  (https://pytorch.org/get-started/locally lists the builds)",
            )  # fmt: skip
            return
        build = _build(torch, tools)
        if build is not None and driver is not None and build > driver[0]:
            yield self.error(
                where, f"torch {torch} was built for CUDA {build}, and the driver of the {name} knows CUDA {driver[0]}.{driver[1]} at most",
                _install(driver, before="Update the driver, or: "),
            )  # fmt: skip


def _install(driver: tuple[int, int], before: str = "") -> str:
    index = torch_index(driver)
    return f"{before}pip install --force-reinstall torch --index-url {index}" if index else _NONE_FITS


def _build(torch: str, tools: Tools) -> int | None:
    """Return the major version of CUDA that torch was built for; the wheels of PyPI tell by what they need."""
    found = _BUILD.search(torch)
    if found is not None:
        return int(found[1])
    runtimes = {"nvidia-cuda-runtime-cu12": 12, "nvidia-cuda-runtime-cu11": 11}
    there = next((major for package, major in runtimes.items() if tools.machine.version(package)), None)
    newest = tools.machine.version("nvidia-cuda-runtime")  # from CUDA 13 on without a suffix
    return there or (int(newest.partition(".")[0]) if newest else None)

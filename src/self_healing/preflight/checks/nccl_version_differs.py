"""The check `nccl-version-differs`: several GPUs talk to each other by another NCCL than torch was built with."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from ..check import Check, Example
from ..finding import Finding, Place
from ..subject import Subject
from ..surroundings.here import shares_our_packages
from ..tools import Tools

_RUN = "torchrun --nproc_per_node 2 -m sft"
_TORCH = {"gpus": ["NVIDIA H100"] * 2, "needs": {"torch": ["nvidia-nccl-cu12==2.27.5"]}}
_OLDER = {**_TORCH, "packages": {"torch": "2.9.0", "nvidia-nccl-cu12": "2.21.5"}}


class NcclVersionDiffers(Check):
    """Where several processes train, the installed NCCL is the one that the installed torch asks for.

    Another package has put an older one in its place where torch ends with `ImportError: ... undefined symbol: ncclCommWindowRegister`,
    or the first exchange between GPUs with `torch.distributed.DistBackendError: NCCL error ... unhandled system error`. A newer one
    mostly works, and was not tried by those who built torch.
    """

    passes = (
        Example(_RUN, "command", machine={**_TORCH, "packages": {"torch": "2.9.0", "nvidia-nccl-cu12": "2.27.5"}}),
        Example("python -m sft", "command", machine=_OLDER),
        Example(_RUN, "command", machine={**_OLDER, "gpus": []}),
        Example(f"{_RUN} --use_cpu true", "command", machine=_OLDER),
        Example(f"ssh node {_RUN}", "command", machine=_OLDER),
        Example(_RUN, "command", machine={**_OLDER, "needs": {"torch": []}}),
    )
    fails = (
        Example(_RUN, "command", machine=_OLDER),
        Example("accelerate launch -m sft", "command", machine=_OLDER),
        Example(
            _RUN, "command",
            machine={
                "gpus": ["NVIDIA B200"] * 2, "needs": {"torch": ["nvidia-nccl-cu13==2.28.9"]},
                "packages": {"torch": "2.10.0", "nvidia-nccl-cu13": "2.29.2"},
            },
        ),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare what is installed with what torch's own metadata ask for."""
        if subject.is_on("use_cpu", "no_cuda") or not _are_several(subject, tools):
            return
        if not shares_our_packages(subject, tools):
            return
        for need in tools.machine.needs("torch"):
            if not need.name.startswith("nvidia-nccl-cu"):
                continue
            wanted, found = next(iter(need.specifier), None), tools.machine.version(need.name)
            if wanted is None or wanted.operator != "==" or found is None or need.specifier.contains(found):
                continue
            # within one major version NCCL stays compatible: what a newer one lacks nothing of, an older one may
            tell = self.warning if _is_older(found, wanted.version) else self.info
            yield tell(
                Place("environment", key=need.name),
                f"{need.name} {found} is installed, and torch {tools.machine.version('torch')} was built with {wanted.version}",
                f"pip install {need.name}=={wanted.version}",
            )


def _are_several(subject: Subject, tools: Tools) -> bool:
    """Say whether more than one process trains on GPUs of this machine."""
    if not tools.machine.gpus:
        return False
    if subject.processes is not None:
        return subject.processes > 1
    return subject.command is not None and subject.command.starts_many and len(tools.machine.gpus) > 1


def _is_older(found: str, wanted: str) -> bool:
    try:
        return Version(found) < Version(wanted)
    except InvalidVersion:
        return False

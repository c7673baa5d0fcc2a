"""The device a training is for: what the options name, the flavor of its job, or what this machine has."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..subject import Subject
from ..tools import Tools
from .devices import CPU, Device, find_device, find_flavor
from .present import host_memory_gib, present_gpu


@dataclass(frozen=True, slots=True)
class Target:
    """Where a training runs."""

    device: Device
    count: int
    """How many of them take part."""
    said_by: str
    """How that is known: `--gpu`, `the flavor t4-small`, `this machine`."""
    is_here: bool = False
    """It is this machine, so what is installed here is what will run."""

    def __str__(self) -> str:
        """Return it as it is shown: `2 x A10G (22.0 GiB each)`."""
        many = f"{self.count} x {self.device.name}" if self.count > 1 else self.device.name
        return f"{many} ({self.device.memory_gib:.1f} GiB{' each' if self.count > 1 else ''})"


def target_of(subject: Subject, tools: Tools) -> Target | None:
    """Return the device; None where nobody says and this machine has no GPU, or is only the one that submits."""
    found = _named(tools) or _of_flavor(subject) or _of_cpu(subject)
    if found is None and not subject.starts_elsewhere:
        found = _present(tools)
    if found is None:
        return None
    if found.device.is_cpu:
        return replace(found, device=replace(CPU, memory_gib=host_memory_gib()), count=1)
    return replace(found, count=subject.processes or found.count)


def _named(tools: Tools) -> Target | None:
    device = find_device(tools.options.gpu) if tools.options.gpu is not None else None
    return Target(device, tools.options.gpus, f"--gpu {tools.options.gpu}") if device is not None else None


def _of_flavor(subject: Subject) -> Target | None:
    job = subject.job
    found = find_flavor(job.flavor) if job is not None and job.flavor_place is not None else None
    return Target(*found, f"the flavor {job.flavor}") if job is not None and found is not None else None


def _of_cpu(subject: Subject) -> Target | None:
    if subject.is_on("use_cpu", "no_cuda"):
        return Target(CPU, 1, "use_cpu=True")
    return None


def _present(tools: Tools) -> Target | None:
    found = present_gpu(tools.environ)
    if found is None:
        return None
    return Target(
        found.device, found.count if tools.options.gpus == 1 else tools.options.gpus, "this machine", is_here=True
    )

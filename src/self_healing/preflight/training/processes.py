"""How many processes a training will have, as far as that is said."""

from __future__ import annotations

from pathlib import PurePath

from ..started import program_of
from ..subject import Command, Config, Subject
from .arguments import framework_of


def process_count(subject: Subject) -> int | None:
    """Return the number of processes; None where nothing says it."""
    if subject.trainer is not None:
        count = getattr(getattr(subject.trainer, "args", None), "world_size", None)
        return count if isinstance(count, int) else None
    if subject.command is not None and (count := _of_command(subject.command)) is not None:
        return count
    for config in subject.configs:
        if framework_of(config) == "accelerate" and (count := _whole(config, "num_processes")) is not None:
            return count
    if subject.options.gpus > 1:
        return subject.options.gpus
    # the machine of a job may have more GPUs than its command starts processes
    return 1 if subject.job is not None and subject.gpu not in (None, "cpu") and subject.gpus == 1 else None


def is_one_gpu(subject: Subject) -> bool | None:
    """Say whether there is one GPU; None where nothing says it."""
    count = process_count(subject)
    if count is not None:
        return count == 1
    return True if subject.gpu not in (None, "cpu") and subject.gpus == 1 else None


def _of_command(command: Command) -> int | None:
    flags = {flag.name: flag.value for flag in command.launcher_flags}
    for each in ("nproc_per_node", "num_processes", "num_gpus"):
        value = flags.get(each)
        if isinstance(value, int) and not isinstance(value, bool):
            nodes = flags.get("nnodes", flags.get("num_nodes", 1))
            return value * nodes if each != "num_processes" and isinstance(nodes, int) else value
    if command.launcher is not None or command.method:
        return None
    first = PurePath(next(iter(program_of(command.argv)), "")).name
    return 1 if first.startswith("python") else None


def _whole(config: Config, name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

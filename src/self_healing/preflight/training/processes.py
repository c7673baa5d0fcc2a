"""How many processes a training will have, as far as that is said."""

from __future__ import annotations

from pathlib import PurePath

from ..subject import Command, Subject
from ..subject.started import program_of


def process_count(subject: Subject) -> int | None:
    """Return the number of processes: as it is said, else one where nothing is there that starts more; None where it may be any."""
    command = subject.command
    if subject.trainer is None and command is not None and command.processes is None and _is_plain(command):
        return 1
    if subject.trainer is not None or subject.processes is not None:
        return subject.processes
    # the machine of a job may have more GPUs than its command starts processes
    return 1 if subject.job is not None and subject.gpu not in (None, "cpu") and subject.gpus == 1 else None


def is_one_gpu(subject: Subject) -> bool | None:
    """Say whether there is one GPU; None where nothing says it."""
    count = process_count(subject)
    if count is not None:
        return count == 1
    return True if subject.gpu not in (None, "cpu") and subject.gpus == 1 else None


def _is_plain(command: Command) -> bool:
    """Say whether Python alone runs it."""
    first = PurePath(next(iter(program_of(command.argv)), "")).name
    return first.startswith("python") and not command.starts_many

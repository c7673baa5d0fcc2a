"""How a script is run: here, by `uv run` in an environment of its own, or as a job on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePath

from packaging.requirements import InvalidRequirement, Requirement

from ..subject import Script, Subject
from .header import Header


class Way(StrEnum):
    """Where the packages of a script come from."""

    UNSAID = "unsaid"
    """Only the file is named."""
    HERE = "here"
    """By an interpreter of this machine: its packages are those that are installed."""
    ELSEWHERE = "elsewhere"
    """On another machine or in a container, with what is installed there."""
    UV = "uv run"
    JOB = "job"
    """A new container: nothing of this machine is there."""


@dataclass(frozen=True, slots=True)
class Running:
    """How it is run."""

    way: Way = Way.UNSAID
    added: tuple[Requirement, ...] = ()
    """What the command adds by `--with`."""
    has_image: bool = False
    """An image of the user's choice, which may hold anything."""
    python: str = ""

    @property
    def reads_header(self) -> bool:
        """Whether the header of a script decides what is there; a plain interpreter does not look at it."""
        return self.way not in (Way.HERE, Way.ELSEWHERE)

    def is_fresh(self, header: Header | None) -> bool:
        """Say whether it starts with nothing but what the script itself asks for."""
        if self.has_image:
            return False
        return self.way is Way.JOB or (header is not None and self.reads_header)


def how_it_runs(subject: Subject, script: Script) -> Running:
    """Return how the command or the job runs a script."""
    command, job = subject.command, subject.job
    if job is not None and is_sent(subject, script):
        has_image = job.has_unknown_packages or bool(job.image) or not job.is_uv
        return Running(Way.JOB, tuple(_requirements(job.dependencies)), has_image, job.python)
    if command is None or command.script != script.named:
        return Running()
    before = command.argv[: command.argv.index(command.script)]
    is_uv = any(pair == ("uv", "run") for pair in pairwise(PurePath(word).name for word in before))
    added = [part for text in _values(before, "--with") for part in text.split(",")]
    is_elsewhere = not is_uv and command.starts_elsewhere  # with packages that are not known here
    return Running(
        Way.UV if is_uv else Way.ELSEWHERE if is_elsewhere else Way.HERE, tuple(_requirements(added)),
        is_elsewhere or bool(_values(before, "--with-requirements", "--with-editable")),
        next(iter(_values(before, "--python", "-p")), ""),
    )  # fmt: skip


def is_sent(subject: Subject, script: Script) -> bool:
    """Say whether a script is the one that a job runs; one that submits the job runs here."""
    job = subject.job
    if job is None:
        return False
    if job.inline is not None:
        return is_inline(subject, script)
    names = [job.script]
    if subject.command is not None and job.place.source == "job":  # of `hf jobs run image python train.py` too
        names.append(subject.command.script)
    return any(name is not None and PurePath(name) == PurePath(script.named) for name in names)


def is_inline(subject: Subject, script: Script) -> bool:
    """Say whether a script stands in the spec of a job, and is no file of its own."""
    if subject.job is None or subject.job.inline is None:
        return False
    source = subject.job.place.source
    is_in_config = script.named == source and any(config.named == source for config in subject.configs)
    return is_in_config or script.named == f"{source} (script)"


def has_environment_for_uv(script: Script, cwd: Path) -> bool:
    """Say whether `uv run` finds packages without a header: a project, or a virtual environment."""
    folders = (*script.path.resolve().parents, cwd, *cwd.resolve().parents)
    return any((each / name).exists() for each in folders for name in ("pyproject.toml", ".venv"))


def _values(words: Sequence[str], *flags: str) -> list[str]:
    found = []
    for at, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if name in flags:
            found.append(value if is_joined else words[at + 1] if at + 1 < len(words) else "")
    return found


def _requirements(texts: Sequence[str]) -> list[Requirement]:
    found = []
    for text in texts:
        try:
            found.append(Requirement(text))
        except InvalidRequirement:
            continue
    return found

"""The base of all checks: one file in `checks/`, one class, found by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..core.naming import kebab_case
from .finding import Finding, Note, Place, Severity

if TYPE_CHECKING:
    from .subject import Subject
    from .tools import Tools


class CannotRun(Exception):  # it is no error: the check says that it was not made, and why
    """Raised by a check that cannot be made here: no network, no samples, no such device."""


@dataclass(frozen=True)
class Example:
    """A small script, config or command, and the options it is checked with; the tests run every one."""

    text: str
    """The content of the file; of a command the words behind `--`."""
    name: str = "train.py"
    """The file it is checked as; `command` for a command line."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Fields of `CheckOptions`."""
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """What lies beside it: the script of a command, modules, adapters."""
    machine: Mapping[str, object] = field(default_factory=dict)
    """Facts of the machine, by the names of `Machine`'s; the real one answers what is not here."""


class Check(ABC):
    """A statement that should be true of what is to be run, and what to do where it is not.

    The docstring of a class says in its first line what is verified, and below it why.
    """

    passes: ClassVar[tuple[Example, ...]] = ()
    """What this check has nothing to say against."""
    fails: ClassVar[tuple[Example, ...]] = ()
    """What it finds something in."""
    asks_the_hub: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """Return the name by which it is selected and reported."""
        return kebab_case(cls.__name__)

    @abstractmethod
    def run(self, subject: Subject, tools: Tools) -> Iterable[Finding | Note]:
        """Yield what is amiss, or a note; nothing where there is nothing to look at.

        Raises:
            CannotRun: it cannot be made here; what was yielded before counts.

        """

    def error(self, where: Place, message: str, fix: str) -> Finding:
        """Return a finding that will end or spoil the run."""
        return Finding(check=self.name(), severity=Severity.ERROR, where=where, message=message, fix=fix)

    def warning(self, where: Place, message: str, fix: str) -> Finding:
        """Return a finding that may."""
        return Finding(check=self.name(), severity=Severity.WARNING, where=where, message=message, fix=fix)

    def info(self, where: Place, message: str, fix: str) -> Finding:
        """Return something good to know."""
        return Finding(check=self.name(), severity=Severity.INFO, where=where, message=message, fix=fix)

    def note(self, where: Place, message: str) -> Note:
        """Return what is in order and worth telling: an answer to a question that a user has, with nothing to be done."""
        return Note(self.name(), where, message)

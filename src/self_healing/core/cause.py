"""Hypotheses: what would explain an incident, from numbers (`Cause`) or from text (`Pattern`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from .action import Ladder
from .failure import FailureType
from .history import History
from .incident import Incident
from .naming import kebab_case, summary_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What speaks for a hypothesis, and how strongly."""

    weight: float
    """From 0 (only possible) to 1 (certain)."""
    found: tuple[str, ...] = ()
    """The facts that speak for it, each one sentence with its numbers."""
    at: int = 0
    """Where in the text it was found (the last character of it): whoever knows the lines of the text can name the line."""


class Cause:
    """A hypothesis from numbers that completes "because of ...". One file each, discovered by folder."""

    explains: ClassVar[tuple[str, ...]]
    """The rules whose incidents it may explain."""
    confirm: ClassVar[str]
    """What would confirm or rule it out."""
    fixes: ClassVar[tuple[str, ...]]
    """What a person can do about it, with numbers."""
    remedy: ClassVar[Ladder] = ()
    """What the healer can do about it; empty where the rule's own ladder is as good."""
    is_certain: ClassVar[bool] = False
    """True where its evidence is a measurement that leaves nothing else to try: then the rule's own ladder is not gone back to."""
    references: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def name(cls) -> str:
        """Return the cause's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    @classmethod
    def summary(cls) -> str:
        """Return the one sentence shown in lists."""
        return summary_of(cls)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Say what speaks for this cause, or None where it is out of the question."""
        raise NotImplementedError

    def ladder(self, incident: Incident) -> Ladder:
        """Return the remedies for an incident; override where a rule it explains knows better (an empty ladder)."""
        return self.remedy


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A hypothesis from text: an exception name or a message that gives a failure away."""

    name: str
    says: str
    """One sentence: what happened."""
    failure: FailureType
    fine: str
    text: str = ""
    """Regular expression (linear-time syntax: no look-around, no back-references) searched in the message."""
    exception: tuple[str, ...] = ()
    """Class names, qualified or not, of the exception or any of its bases; matched by name, never imported."""
    weight: float = 0.9
    is_echo: bool = False
    """True where it is usually a consequence: what other processes, launchers and schedulers say when one has failed.

    It explains a failure only where nothing else does.
    """
    confirm: str = ""
    """What would tell it from what else the text may mean."""
    remedy: Ladder = ()
    fixes: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    """Real texts it must match: `qualified.Exception: message` as Python prints it, or a log line."""
    but_not: tuple[str, ...] = ()
    """Texts that look alike and mean something else."""
    source: str = ""
    """Where the text comes from."""

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.text, re.IGNORECASE)

    def evidence(self, exception: str, bases: tuple[str, ...], message: str) -> Evidence | None:
        """Say what speaks for this pattern in an exception or a piece of output."""
        names = {exception, *bases}
        names |= {name.rpartition(".")[2] for name in names}
        if self.exception and exception and not names.intersection(self.exception):
            return None
        if self.exception and not exception:
            return None
        if not self.text:
            return Evidence(weight=self.weight, found=(f"raised {exception}",))
        hit = self._compiled.search(message)
        if hit is None:
            return None
        line_start = message.rfind("\n", 0, hit.start()) + 1
        line = message[line_start:].split("\n", 1)[0]
        return Evidence(weight=self.weight, found=(line[:300],), at=max(hit.start(), hit.end() - 1))

"""What a check has to say: where, what, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.failure import Severity

__all__ = ["Finding", "NotRun", "Note", "Place", "Severity"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands: a line of a file, a flag of a command, an option of ours."""

    source: str
    """A path as the user named it, `command`, `job`, `trainer`, `environment`, or an option such as `--model`."""
    line: int = 0
    key: str = ""

    def __str__(self) -> str:
        """Return it as a linter does: `train.py:12`, `command: --bf16`."""
        if self.line:
            return f"{self.source}:{self.line}"
        return f"{self.source}: {self.key}" if self.key else self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that will or may go wrong."""

    check: str
    severity: Severity
    """`error`: the run fails or its result is worthless; `warning`: it may; `info`: good to know, no problem."""
    where: Place
    message: str
    fix: str
    """What to do, so that a newcomer can do it: the line to write, the command to run."""

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {
            "check": self.check, "severity": str(self.severity), "where": str(self.where), "message": self.message,
            "fix": self.fix,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Note:
    """What a check has found to be in order and worth telling: no finding, so it counts for nothing."""

    check: str
    where: Place
    message: str

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {"check": self.check, "where": str(self.where), "message": self.message}


@dataclass(frozen=True, slots=True)
class NotRun:
    """A check that could not be made, which is no pass."""

    check: str
    because: str

    def to_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {"check": self.check, "because": self.because}

"""What can be said about a run from what it left behind: one value per finding, as the text alone tells it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.failure import Severity
from ..core.secrets import strip_control

LONGEST_SHOWN = 400
"""Characters of one line that are shown: a decisive line is shorter, and a longer one is cut in its middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One piece of evidence: a line of the text, or a sentence about numbers."""

    text: str
    line: int | None = None
    """The number of the line, from 1, where it is one of a text."""
    step: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the evidence as plain data."""
        return {"text": self.text, "line": self.line, "step": self.step}


@dataclass(frozen=True, slots=True, kw_only=True)
class Possible:
    """Another reading of the same evidence, and what would tell the two apart."""

    name: str
    fine: str
    says: str
    confirm: str = ""
    fix: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the reading as plain data."""
        return {
            "name": self.name, "class": self.fine, "says": self.says, "confirm": self.confirm, "fix": list(self.fix),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFinding:
    """One thing that happened to a run, with its lines, before it stands beside what the numbers say (`Finding`)."""

    name: str
    """The pattern, rule or cause it comes from."""
    fine: str
    """The fine class, which is what `class` means where it is written down."""
    severity: Severity
    says: str
    """One sentence: what happened."""
    because: str
    """Why we think so, in one or two sentences."""
    weight: float = 1.0
    """How sure we are, from 0 to 1; below 0.5 it is only possible."""
    step: int | None = None
    line: int | None = None
    evidence: tuple[Seen, ...] = ()
    also_possible: tuple[Possible, ...] = ()
    fix: tuple[str, ...] = ()
    """What to do now, the most concrete first."""
    references: tuple[str, ...] = ()
    is_echo: bool = False
    """True where it is usually a consequence: another text may hold the cause."""

    def to_json(self) -> dict[str, object]:
        """Return the finding as the documented schema has it."""
        return {
            "name": self.name, "class": self.fine, "severity": str(self.severity), "says": self.says,
            "step": self.step, "line": self.line, "evidence": [seen.to_json() for seen in self.evidence],
            "because": self.because, "also_possible": [possible.to_json() for possible in self.also_possible],
            "fix": list(self.fix), "references": list(self.references),
        }  # fmt: skip


def shown(text: str, longest: int = LONGEST_SHOWN) -> str:
    r"""Return one line as it may be shown: no escapes, no control characters, no endless line.

    Example:
        >>> shown("\x1b]0;title\x07loss" + "!" * 3, longest=6)
        'los...'

    """
    clean = strip_control(text[: 8 * longest]).replace("\n", " ").replace("\t", " ").rstrip()
    if len(text) <= 8 * longest and len(clean) <= longest:
        return clean
    return clean[: longest - 3] + "..."

"""What a program printed, as findings of a report: the one place where the text is asked."""

from __future__ import annotations

from functools import lru_cache

from ..core.cause import Pattern
from ..core.discover import discover_patterns
from ..readers.log_text import Block
from .finding import Finding, public_class
from .text import TextReading
from .text_finding import Possible, TextFinding


class PrintedText:
    """A text that is being read; feed it blocks, then ask for findings."""

    def __init__(self) -> None:
        self._reading: TextReading | None = None

    def feed(self, block: Block) -> None:
        """Read the next lines."""
        if self._reading is None:
            self._reading = TextReading(_patterns())
        self._reading.feed(block)

    def findings(self) -> list[Finding]:
        """Return what the text gives away, the root first; there is nothing more to read."""
        return [_reported(finding) for finding in self._reading.findings()] if self._reading is not None else []


def _reported(finding: TextFinding) -> Finding:
    because = f"{finding.says} {finding.because}".strip()
    return Finding(
        name=finding.name, fine=public_class(finding.fine), severity=finding.severity, because=because, step=finding.step,
        line=finding.line, evidence=tuple(_told(seen.text, seen.line) for seen in finding.evidence),
        also_possible=tuple(_alternative(possible) for possible in finding.also_possible), fix=finding.fix,
        references=finding.references, is_echo=finding.is_echo,
    )  # fmt: skip


def _told(text: str, line: int | None) -> str:
    return f"line {line}: {text}" if line is not None else text


def _alternative(possible: Possible) -> str:
    told = f"{possible.name}: {possible.says}"
    return f"{told} To tell: {possible.confirm}" if possible.confirm else told


@lru_cache(1)
def _patterns() -> tuple[Pattern, ...]:
    return discover_patterns("self_healing.patterns")

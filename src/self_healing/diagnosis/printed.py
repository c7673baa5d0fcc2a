"""Findings from the lines of a log: the one place where the patterns are asked."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from ..core.cause import Pattern
from ..core.diagnosis import diagnose
from ..core.discover import discover_patterns
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..readers.log_text import Block, Line
from .finding import Finding, explained, public_class

_TELLING = re.compile(
    r"error|exception|traceback|killed|fatal|abort|fail|cannot|mismatch|interrupt|out of memory|signal|nccl|xid|no space"
    r"|denied|timed? ?out|terminat|preempt|slurm|usage:|segmentation|assert",
    re.IGNORECASE,
)
MOST_LINES = 400
"""Telling lines that are looked at: the newest, for a log ends with what ended the run."""
LONGEST = 2000


class PrintedText:
    """A text that is being read; feed it blocks, then ask for findings."""

    def __init__(self) -> None:
        self._telling: deque[Line] = deque(maxlen=MOST_LINES)

    def feed(self, block: Block) -> None:
        """Read the next lines."""
        for line in block.lines():
            if _TELLING.search(line.text[:LONGEST]):
                self._telling.append(Line(line.number, line.text[:LONGEST]))

    def findings(self) -> list[Finding]:
        """Return what the patterns recognise, most likely first; there is nothing more to read."""
        telling = self._telling
        if not telling:
            return []
        text = "\n".join(line.text for line in telling)
        incident = Incident(
            name="exited",
            failure=FailureType.CRASH,
            fine="crash",
            severity=Severity.ERROR,
            step=0,
            because="",
            text=text,
        )
        found = diagnose(incident, (), _patterns(), History(), lambda _name, _error: None)
        leading = found.leading
        if leading is None:
            return []
        decisive = leading.found[0] if leading.found else ""
        number = next((line.number for line in reversed(telling) if line.text.startswith(decisive[:200])), None)
        made = Finding(
            name=leading.name, fine=public_class(leading.fine or "crash"), severity=Severity.ERROR, line=number,
            because=leading.says, evidence=leading.found,
        )  # fmt: skip
        return [explained(made, found.hypotheses)]


@lru_cache(1)
def _patterns() -> tuple[Pattern, ...]:
    return discover_patterns("self_healing.patterns")

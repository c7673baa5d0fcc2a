"""A text that stops in the middle says nothing about why: killed without a word, cut off, or still running."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.failure import Severity
from ..readers.log_text import Block
from .text_finding import Seen, TextFinding, shown

_BAR = re.compile(r"(\d{1,12})/(\d{1,12}) \[[\d:]{1,12}<[\d:]{1,16}, ")
_LOOKED_AT = 2**16
_FINISHED = 0.95
_EARLY = 0.5
_FEWEST = 10
_LAST_LINES = 5


def text_ends_early(tail: Sequence[Block]) -> list[TextFinding]:
    """Return a finding where the last thing that a text shows is a bar far from its end."""
    if not tail:
        return []
    lines = tail[-1].text[-_LOOKED_AT:].split("\n")
    numbers = tail[-1].numbers[-len(lines) :]
    while lines and not lines[-1].strip():
        lines.pop()
    last = list(zip(numbers, lines, strict=False))[-_LAST_LINES:]
    shown_last = [(number, line, found) for number, line in last for found in _BAR.findall(line)]
    if not shown_last:
        return []
    largest = max(int(found[1]) for _, _, found in shown_last)
    number, line, found = [item for item in shown_last if int(item[2][1]) == largest][-1]
    done, total = int(found[0]), int(found[1])
    if total < _FEWEST or done >= _FINISHED * total:
        return []
    return [
        TextFinding(
            name="text-ends-early", fine="truncated",
            severity=Severity.WARNING if done < _EARLY * total else Severity.INFO,
            says="The text stops in the middle of the run, without a word about why.", weight=0.5,
            because=f"The last bar is at {done} of {total}, and nothing follows it: the run still goes on, was killed "
            "without a word, or its output was cut. The cause is not in this text.",
            line=number, evidence=(Seen(text=shown(line[-200:]), line=number),),
            fix=(
                ("See whether the process is alive (ps, nvidia-smi); if it is not, ask dmesg and the scheduler (sacct -j) "
                "who ended it, and read its standard error."),
            ),
        )
    ]  # fmt: skip

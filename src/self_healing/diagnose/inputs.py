"""Diagnose one input: read it once, ask the patterns and the rules, and put what they say in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import InputError
from ..core.failure import Severity
from ..core.ledger import Entry
from ..core.signal import Metrics
from ..readers.log_text import Block, Line
from ..readers.source import READABLE, Item, Part, Reading, Seen, open_source
from ..readers.text_file import NotFetched
from ..readers.trainer_state import CutOff, NoHistory
from .finding import Finding, InputReport
from .ledger_notes import LedgerNotes
from .numbers import ENOUGH, Numbers, merged
from .text import text_findings

FINISHED = ("training complete", "training finished", "finished training", "successfully", "train_runtime", "early stopping",
            "training done", "done training", "run summary", "completed", "best model", "max_epochs=", "max_steps=")  # fmt: skip
"""What programs say when they are done, in lower case."""
NEARLY = 0.95
"""A counter that got so far is taken to have finished."""
WENT_ON = 20
"""Observations after a message that show that it did not end the run."""


@dataclass
class _Watched:
    """What the lines say about the end of a log."""

    lines: int = 0
    finished_line: int = 0

    def look(self, block: Block) -> None:
        if not block.numbers:
            return
        self.lines = block.numbers[-1]
        low = block.text.lower()
        place = max(low.rfind(word) for word in FINISHED)
        if place >= 0:
            self.finished_line = block.numbers[min(low.count("\n", 0, place), len(block.numbers) - 1)]


@dataclass
class _Input:
    """One input while it is read."""

    reading: Reading = field(default_factory=Reading)
    numbers: Numbers = field(default_factory=Numbers)
    ledger: LedgerNotes = field(default_factory=LedgerNotes)
    watched: _Watched = field(default_factory=_Watched)
    texts: list[Finding] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    has_lines: bool = False
    _runs: int = 0
    """Runs of the parts before this one."""
    _newest: int = 0

    def take(self, items: Iterator[Item]) -> None:
        """Read everything; the patterns pull the lines, and what comes between them goes to the rules."""
        self.texts = text_findings(self._lines(items))

    def _lines(self, items: Iterator[Item]) -> Iterator[Line]:
        for item in items:
            if isinstance(item, Block):
                self.has_lines = True
                self.watched.look(item)
                yield from item.lines()
            elif isinstance(item, Seen):
                self._newest = max(self._newest, self._runs + item.run + 1)
                self.numbers.take(self._runs + item.run, item.signal, item.line)
            elif isinstance(item, Part):
                self.parts.append(f"{item.path} ({item.format})")
                self._runs = self._newest
            elif isinstance(item, Entry):
                self.ledger.take(item)
                signal = self.ledger.observed(item)
                if isinstance(signal, Metrics):
                    self._newest = max(self._newest, self._runs + item.attempt + 1)
                    self.numbers.take(self._runs + item.attempt, signal)

    def report(self, path: str, kind: str) -> InputReport:
        """Return what was found, most likely first."""
        numbers = self.numbers.findings()
        texts = [self._judged(finding) for finding in self.texts]
        found = [*texts, *self.ledger.findings(), *numbers]
        if not any(finding.severity > Severity.INFO for finding in found):
            found += self._unfinished() or self._too_little()
        ranked = sorted(found, key=lambda finding: -finding.severity)  # stable: text before numbers
        return InputReport(path=path, format=kind, findings=_unique(ranked), notes=[*self.parts, *self.reading.damage])

    def _judged(self, finding: Finding) -> Finding:
        """Return a message as grave as it turned out: a run that went on, or another one that was fine, came after it."""
        runs = self.numbers.runs
        if finding.line is None or not runs or finding.severity is Severity.INFO:
            return finding
        long = [run for run in runs if not run.is_short and run.observations >= ENOUGH]
        last = long[-1] if long else None
        if last is not None and last.is_fine and finding.line < last.first_line:
            return finding.eased("an earlier attempt: a later run in this log is fine")
        after = sum(line > finding.line for line in self.numbers.lines)
        if after >= WENT_ON:
            return finding.eased("training went on after it")
        return finding

    def _unfinished(self) -> list[Finding]:
        place, watched = self.reading.place, self.watched
        if not self.has_lines or place is None or place[0] >= NEARLY * place[1]:
            return []
        if watched.finished_line and watched.finished_line >= watched.lines - 50:
            return []
        done, of = place
        return [
            Finding(
                name="log-ends-early", fine="truncated", severity=Severity.WARNING, line=watched.lines or None,
                because=f"the log ends at {done} of {of} without a message: the process was killed, or is still running",
                also_possible=(
                    "Killed by the kernel or the scheduler. To tell: dmesg | grep -i 'out of memory', sacct -j JOB.",
                    "Still running. To tell: is the process alive, does the file still grow?",
                ),
                fix=("Look at the end of stderr, of the launcher's output and of the other ranks' logs.",),
            )
        ]  # fmt: skip

    def _too_little(self) -> list[Finding]:
        if self.ledger.entries or any(not run.is_short for run in self.numbers.runs):
            return []
        count = sum(run.observations for run in self.numbers.runs)
        return [
            Finding(
                name="too-little-to-judge", fine="insufficient_data", severity=Severity.WARNING,
                because=f"{count or 'no'} observation{'s' if count != 1 else ''} of a loss or reward and no known error: "
                "too little to say anything",
                fix=("Give a longer recording: the whole log, trainer_state.json or the run's folder; logging_steps=10.",),
            )
        ]  # fmt: skip


def _unique(findings: list[Finding]) -> list[Finding]:
    """Return findings with one a class; text and ledger may say the same."""
    order: dict[str, int] = {}
    for place, finding in enumerate(findings):
        order.setdefault(finding.fine, place)
    return sorted(merged(findings), key=lambda finding: (-finding.severity, order[finding.fine]))


def diagnose_input(path: str | Path) -> InputReport:
    """Say what went wrong in one input; what cannot be read is a report too, never an exception."""
    kind, state = "unknown", _Input()
    try:
        source = open_source(path)
        kind = source.format.name()
        state.take(source.items(state.reading))
    except InputError as error:
        return InputReport(path=str(path), format=kind, findings=[_unusable(error)], is_usable=False)
    return state.report(str(path), kind)


def _unusable(error: InputError) -> Finding:
    fine, name, fix = "insufficient_data", "unreadable-input", f"{READABLE[0].upper()}{READABLE[1:]}."
    match error:
        case NotFetched():
            fine, name, fix = "lfs_pointer", "content-not-fetched", "Fetch the file itself: git lfs pull, or git annex get."
        case CutOff():
            fine, name, fix = "truncated", "file-cut-off", "Copy the file again, or take that of an earlier checkpoint."
        case NoHistory():
            fine, name = "not_hf_format", "not-a-trainer-state"
    return Finding(name=name, fine=fine, severity=Severity.ERROR, because=str(error), fix=(fix,))


def exit_code(reports: list[InputReport]) -> int:
    """Return 2 where an input was unusable, 1 where something was found, else 0."""
    if any(not report.is_usable for report in reports):
        return 2
    return 0 if all(report.healthy for report in reports) else 1




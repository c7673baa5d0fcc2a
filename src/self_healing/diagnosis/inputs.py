"""Diagnose one input: read it once, ask the patterns and the rules, and put what they say in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.errors import InputError
from ..core.failure import Severity
from ..core.signal import Metrics
from ..readers.log_text import Block
from ..readers.source import READABLE, Item, Reading, Seen, Source, open_source
from ..readers.text_file import NotFetched
from ..readers.trainer_state import CutOff, NoHistory
from .finding import Finding, InputReport
from .ledger_notes import LedgerNotes
from .numbers import ENOUGH, Numbers, merged
from .printed import PrintedText

WENT_ON = 20
"""Observations after a message that show that it did not end the run."""


@dataclass
class _Input:
    """One input while it is read."""

    reading: Reading = field(default_factory=Reading)
    numbers: Numbers = field(default_factory=Numbers)
    ledger: LedgerNotes = field(default_factory=LedgerNotes)
    text: PrintedText = field(default_factory=PrintedText)

    def take(self, items: Iterable[Item]) -> None:
        """Read everything: lines go to the patterns, observations to the rules."""
        for item in items:
            if isinstance(item, Block):
                self.text.feed(item)
            elif isinstance(item, Seen):
                self.numbers.take(item.run, item.signal, item.line)
            else:
                self.ledger.take(item)
                self.numbers.asks_rules = False
                signal = self.ledger.observed(item)
                if isinstance(signal, Metrics):
                    self.numbers.take(item.attempt, signal)

    def report(self, path: str, kind: str) -> InputReport:
        """Return what was found, most likely first."""
        numbers = self.numbers.findings()
        texts = [self._judged(finding) for finding in self.text.findings()]
        found = [*texts, *self.ledger.findings(), *numbers]
        if self.reading.cut_off:
            found.insert(0, _cut_off(self.reading.cut_off))
        if not any(finding.severity > Severity.INFO for finding in found):
            found += self._too_little()
        ranked = sorted(found, key=lambda finding: -finding.severity)  # stable: text before numbers
        return InputReport(path=path, format=kind, findings=_unique(ranked), notes=self.reading.damage)

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

    def _too_little(self) -> list[Finding]:
        if self.ledger.entries or any(not run.is_short for run in self.numbers.runs):
            return []
        count = sum(run.judged for run in self.numbers.runs)
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
    kind, reading = "unknown", Reading()
    try:
        source = open_source(path)
        kind = source.format.name()
        parts = source.parts(reading)
        if parts is None:
            return _single(source, str(path), reading)
    except InputError as error:
        return InputReport(path=str(path), format=kind, findings=[_unusable(error)], is_usable=False)
    return _together(Path(path), kind, [diagnose_input(part) for part in parts], reading)


def _single(source: Source, path: str, reading: Reading) -> InputReport:
    state = _Input(reading)
    state.take(source.items(reading))
    return state.report(path, reading.format or source.format.name())


def _together(folder: Path, kind: str, reports: list[InputReport], reading: Reading) -> InputReport:
    """Put the reports on the files of a folder together; each finding says where it is from."""
    usable = [report for report in reports if report.is_usable]
    telling = [report for report in usable if not _says_nothing(report)] or usable or reports
    found = []
    for report in telling:
        name = Path(report.path).relative_to(folder)
        found += [_in_file(finding, str(name)) for finding in report.findings]
    notes = [f"{report.path} ({report.format})" for report in reports]
    notes += [note for report in reports for note in report.notes] + reading.damage
    ranked = sorted(found, key=lambda finding: (-finding.severity, finding.is_echo))
    return InputReport(path=str(folder), format=kind, findings=_unique(ranked), is_usable=bool(usable), notes=notes)


def _in_file(finding: Finding, name: str) -> Finding:
    """Say which file of a folder a finding is from: a line without its file is of no use."""
    because = finding.because if name in finding.because else f"{name}: {finding.because}"
    return replace(finding, because=because, evidence=(*finding.evidence, f"in {name}"))


def _says_nothing(report: InputReport) -> bool:
    return [finding.fine for finding in report.findings] == ["insufficient_data"]


def _unusable(error: InputError) -> Finding:
    fine, name, fix = "insufficient_data", "unreadable-input", f"{READABLE[0].upper()}{READABLE[1:]}."
    match error:
        case NotFetched():
            fine, name, fix = (
                "lfs_pointer",
                "content-not-fetched",
                "Fetch the file itself: git lfs pull, or git annex get.",
            )
        case CutOff():
            return _cut_off(str(error))
        case NoHistory():
            fine, name = "not_hf_format", "not-a-trainer-state"
    return Finding(name=name, fine=fine, severity=Severity.ERROR, because=str(error), fix=(fix,))


def _cut_off(sentence: str) -> Finding:
    return Finding(
        name="file-cut-off", fine="truncated", severity=Severity.ERROR, because=sentence, is_echo=True,
        fix=("Copy the file again, or take that of an earlier checkpoint.", "Do not resume from the checkpoint it lies in."),
    )  # fmt: skip


def exit_code(reports: list[InputReport]) -> int:
    """Return 2 where an input was unusable, 1 where something was found, else 0."""
    if any(not report.is_usable for report in reports):
        return 2
    return 0 if all(report.healthy for report in reports) else 1

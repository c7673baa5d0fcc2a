"""Runs the checks: every one gets its turn, none can stop another, and one that could not be made says so."""

from __future__ import annotations

import difflib
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..core.discover import discover_classes
from ..core.errors import ConfigError
from ..core.secrets import Masker
from .check import CannotRun, Check
from .finding import Finding, Note, NotRun, Place, Severity
from .options import CheckOptions
from .spelling import spelled_for
from .subject import Subject
from .tools import Tools

CATALOGUE = "self_healing.preflight.checks"
READING = "reading"
"""What stands for a check where a file could not be looked at by any."""
_UNREAD = "{}: is not here, so it was not looked at; where the run has it, name a copy of it, too: heal check FILE"
OF_A_TRIAL = ("dry-run", "fresh-env", "isolate", "reward-function", "vllm-server")
"""What a dry run reports under; these names are selected and ignored like those of checks."""
LONGEST_S = 60.0
"""After that a check has not been made, however many others take as long; the calls to the outside have shorter limits of their own."""


@dataclass
class CheckReport:
    """What all checks came to."""

    findings: list[Finding] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    """What is in order and worth telling; it counts for nothing, strictly neither."""
    masker: Masker = field(default_factory=lambda: Masker({}), repr=False, compare=False)
    """For everything that leaves: what a check quotes of a script, what a command has printed."""

    def __str__(self) -> str:
        """Return it as the command prints it."""
        from .rendering import lines_of  # noqa: PLC0415  # which needs this class

        return "\n".join(lines_of(self))

    def add(self, findings: Iterable[Finding], not_run: Iterable[NotRun], notes: Iterable[Note] = ()) -> None:
        """Take in what was found, without its secrets, and put everything in order."""
        mask = self.masker.text
        for each in findings:
            where = self._masked(each.where)
            self.findings.append(replace(each, where=where, message=mask(each.message), fix=mask(each.fix)))
        self.notes += [replace(note, where=self._masked(note.where), message=mask(note.message)) for note in notes]
        self.not_run += [replace(each, because=mask(each.because)) for each in not_run]
        self.findings.sort(key=lambda found: (-found.severity, found.where.source, found.where.line, found.check))

    def _masked(self, where: Place) -> Place:
        return replace(where, source=self.masker.text(where.source), key=self.masker.text(where.key))

    def exit_code(self, *, strict: bool) -> int:
        """Return 1 where there is a problem; strictly also where something was only noted or could not be looked at."""
        least = Severity.INFO if strict else Severity.WARNING
        has_problem = any(finding.severity >= least for finding in self.findings)
        return int(has_problem or (strict and bool(self.not_run)))

    def to_json(self) -> dict[str, object]:
        """Return it as `--json` prints it."""
        return {
            "v": 1,
            "findings": [finding.to_json() for finding in self.findings],
            "not_run": [each.to_json() for each in self.not_run],
            "notes": [note.to_json() for note in self.notes],
        }


def known_checks() -> dict[str, type[Check]]:
    """Return every check by name."""
    return dict(discover_classes(CATALOGUE, Check))  # type: ignore[type-abstract]  # a base is meant here


def chosen_checks(options: CheckOptions) -> dict[str, type[Check]]:
    """Return the checks that are to be made.

    Raises:
        ConfigError: a name that is selected or ignored is none of a check.

    """
    known = known_checks()
    names = (*known, *OF_A_TRIAL)
    for name in (*options.select, *options.ignore):
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise ConfigError(f"{name}: there is no such check" + (f"; did you mean {near[0]}?" if near else ""))
    return {name: cls for name, cls in known.items() if options.is_chosen(name)}


def run_checks(subject: Subject, tools: Tools) -> CheckReport:
    """Make all checks that are chosen; they wait for the Hub side by side."""
    made = [_Making(cls(), subject, tools) for cls in chosen_checks(tools.options).values()]
    for each in made:
        each.start()
    unread = [NotRun(READING, _UNREAD.format(named)) for named in subject.left_out]
    report = CheckReport(masker=Masker(tools.environ))
    report.add([], unread)
    until = time.monotonic() + LONGEST_S
    for each in made:
        each.join(max(0.0, until - time.monotonic()))
        report.add(each.findings(), each.not_run(), each.notes())
    return report


class _Making(threading.Thread):
    """One check being made, in a thread that nobody waits for longer than the limit."""

    def __init__(self, check: Check, subject: Subject, tools: Tools) -> None:
        super().__init__(name=f"self-healing-check-{check.name()}", daemon=True)
        self._check, self._subject, self._tools = check, subject, tools
        self._found: list[Finding] = []
        self._notes: list[Note] = []
        self._because = ""

    def run(self) -> None:
        try:
            _gather(self._check.run(self._subject, self._tools), self._found, self._notes)
        except CannotRun as error:
            self._because = str(error)
        except Exception as error:  # noqa: BLE001  # a defect of one check must not cost the others; it is reported
            self._because = f"the check itself failed, {type(error).__name__}: {error}"

    def findings(self) -> list[Finding]:
        return list(self._found)

    def notes(self) -> list[Note]:
        return list(self._notes)

    def not_run(self) -> list[NotRun]:
        because = f"it took longer than {LONGEST_S:g} s" if self.is_alive() else self._because
        return [NotRun(self._check.name(), because)] if because else []


def _gather(said: Iterable[Finding | Note], into: list[Finding], notes: list[Note]) -> None:
    for each in said:
        if isinstance(each, Note):
            notes.append(each)
            continue
        finding = replace(each, fix=spelled_for(each.where, each.fix))
        if finding not in into:
            into.append(finding)

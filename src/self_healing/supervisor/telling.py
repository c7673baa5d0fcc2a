"""What `heal run` says: to the person who waits, to `heal.log`, and to the ledger of the supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..core.discover import discover_patterns
from ..core.failure import FailureType
from ..core.ledger import Ledger
from ..core.run_directory import supervisor_ledger_path
from ..core.secrets import Masker, strip_control
from .outcome import Outcome

LOG = "heal.log"
INCIDENT = "exited"
"""The rule that speaks of processes that end before their work is done."""


class Teller:
    """Says everything three times; a disk that refuses costs the record, never the run."""

    def __init__(self, run_dir: Path, show: Callable[[str], None], environ: Mapping[str, str]) -> None:
        self._show = show
        self._open: tuple[int, dict[str, str]] | None = None
        """What the last attempt has failed of."""
        self._mask = Masker(environ)
        self._ledger = Ledger(supervisor_ledger_path(run_dir), environ=environ)
        self._log = os.open(run_dir / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def say(self, text: str, level: str = "INFO") -> None:
        """Say something to whoever waits, and write it down."""
        clean = strip_control(self._mask.text(text))
        self.note(clean, level)
        self._show(clean)

    def note(self, text: str, level: str = "INFO") -> None:
        """Write something down."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} - {level} - {strip_control(self._mask.text(text))}\n"
        try:
            os.write(self._log, line.encode(errors="replace"))
        except OSError:
            self._show(line.rstrip())

    def record(self, name: str, body: Mapping[str, object], *, step: int = 0, kind: str = "note") -> None:
        """Add a line to the ledger."""
        self._ledger.append(kind, name, step=step, time_s=time.time(), body=body)

    def record_failure(self, outcome: Outcome) -> None:
        """Add what an attempt has failed of, as the healer of a live run does."""
        step, failure = outcome.attempt.step or 0, failure_of(outcome.fine).value
        body = {
            "failure": failure, "class": outcome.fine, "severity": "error",
            "because": f"attempt {outcome.attempt.number}: {outcome.says}",
        }  # fmt: skip
        self.record(INCIDENT, {"event": "opened", **body}, step=step, kind="incident")
        hypothesis = {
            "name": outcome.fine, "says": outcome.says, "weight": 1.0, "found": list(outcome.evidence), "confirm": "",
            "fixes": list(outcome.fixes), "references": [],
        }  # fmt: skip
        diagnosis = {"incident": INCIDENT, "failure": failure, "hypotheses": [hypothesis]}
        self.record(INCIDENT, diagnosis, step=step, kind="diagnosis")
        self._open = step, body

    def record_over(self) -> None:
        """Add that what the last attempt failed of is over, if it has: another one begins."""
        if self._open is not None:
            step, body = self._open
            closed = {"event": "closed", "reason": "another attempt is made", **body}
            self.record(INCIDENT, closed, step=step, kind="incident")
            self._open = None

    def flush(self) -> None:
        """Have everything so far in the file."""
        self._ledger.flush()

    def close(self) -> None:
        """Write what is left."""
        self._ledger.close()
        os.close(self._log)


def table(story: Sequence[Outcome]) -> list[str]:
    """Return the short table of all attempts."""
    rows = [("attempt", "ended", "cause", "changed before it", "step", "time")]
    for outcome in story:
        attempt = outcome.attempt
        ended = "finished" if outcome.succeeded else _status(attempt.status)
        changed = "; ".join(attempt.changes) or "-"
        step = "-" if attempt.step is None else str(attempt.step)
        rows.append((str(attempt.number), ended, outcome.fine or "-", changed, step, f"{attempt.seconds:.1f} s"))
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lost_s = sum(outcome.attempt.seconds for outcome in story if not outcome.succeeded)
    if len(story) > 1:
        lines.append(f"time in attempts that failed: {lost_s:.1f} s")
    return lines


def failure_of(fine: str) -> FailureType:
    """Return the coarse class of a fine one."""
    rows = (row.failure for row in discover_patterns("self_healing.patterns") if row.fine == fine)
    return next(rows, FailureType.HANG if fine == "hang" else FailureType.CRASH)


def _status(status: int | None) -> str:
    if status is None:
        return "lost"
    return f"signal {-status}" if status < 0 else f"exit code {status}"

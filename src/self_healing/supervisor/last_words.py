"""The postmortem of a job whose command could not write one: as part of the run directory, in the same form."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ..core.errors import ExitCode
from ..core.ledger import LedgerReading
from ..core.run_directory import ledger_path, supervisor_ledger_path
from ..core.run_ledgers import iter_last_job, iter_run
from ..report.environment import hardware, versions
from ..report.postmortem import ExitReason, build_postmortem, postmortem_path
from ..report.write import write_json_atomically
from .outcome import EndedBy, Outcome

_BY_SIGNAL = {
    signal.SIGINT: ExitReason.SIGINT, signal.SIGTERM: ExitReason.SIGTERM, signal.SIGHUP: ExitReason.SIGHUP,
    signal.SIGUSR1: ExitReason.SIGUSR1, signal.SIGUSR2: ExitReason.SIGUSR2,
}  # fmt: skip


def write_last_words(
    run_dir: Path, last: Outcome, reason: ExitReason, began_s: float, environ: Mapping[str, str], *, home: Path | None
) -> None:
    """Write the postmortem of a job; `home` is the folder of a training that our healer has looked after."""
    own, supervisors = _ledger_of_training(run_dir, began_s, home), supervisor_ledger_path(run_dir)
    reading = LedgerReading()
    # Of a training that our healer looks after, the ledger itself says what goes on from what.
    entries = iter_last_job(supervisors, reading) if own is None else iter_run(own, supervisors, reading)
    postmortem = build_postmortem(
        entries, exit_reason=reason, exception=None, last_step=last.attempt.step or 0,
        final_metrics=None, started_s=began_s, ended_s=time.time(), versions=versions(), hardware=hardware(), reading=reading,
        ledger=Path(os.path.relpath(own or supervisors, run_dir)).as_posix(), environ=environ,
    )  # fmt: skip
    write_json_atomically(postmortem_path(run_dir), postmortem.to_json())


def _ledger_of_training(run_dir: Path, began_s: float, home: Path | None) -> Path | None:
    """Return the ledger of a training that was looked after from inside; its folder may be another than that of the job."""
    own = ledger_path(home or run_dir)
    is_of_this_job = own.is_file() if home is not None else _written_since(own, began_s)
    return own if is_of_this_job else None


def exit_reason(last: Outcome, asked_to_end: int | None) -> ExitReason:
    """Return what has ended a job, as a postmortem names it."""
    if last.succeeded:
        return ExitReason.COMPLETED
    if last.attempt.ended_by is EndedBy.SIGNAL and asked_to_end is not None:
        return _BY_SIGNAL[signal.Signals(asked_to_end)]
    if last.attempt.status == ExitCode.GAVE_UP or last.attempt.ended_by in (EndedBy.NAN, EndedBy.HANG):
        return ExitReason.UNRECOVERABLE
    if last.attempt.status is None or last.attempt.status < 0:
        return ExitReason.KILLED
    return ExitReason.EXCEPTION


def _written_since(path: Path, since_s: float) -> bool:
    try:
        return path.stat().st_mtime >= since_s
    except OSError:
        return False

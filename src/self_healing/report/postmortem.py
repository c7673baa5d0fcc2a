"""The postmortem of a run: what ended it, what went wrong, what was done about it and what a person can do."""

from __future__ import annotations

import json
import os
import stat
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from ..core.errors import InputError, LedgerError
from ..core.ledger import PAUSE_S, Entry, LedgerReading
from ..core.run_directory import ledger_path
from .changes import known_actions
from .clean import ODD_VALUES, Cleaner, number_of, seconds_of, step_of
from .story import MOST_LISTED, Attempt, Story

SCHEMA = 1
"""The version written; this one and the one before are read, a newer one is refused by name."""

FILE_NAME = "postmortem.json"
_LATEST_TIME = 253_402_300_799
"""The end of the year 9999, after which dates have no four-digit year."""
_LARGEST_FILE = 64 * 2**20
_LONGEST_MESSAGE = 4000
_MOST_NOTES = 16
_SKIPPED = "healing/skipped_steps"


class ExitReason(StrEnum):
    """What ended a run."""

    COMPLETED = "completed"
    EXCEPTION = "exception"
    SIGTERM = "sigterm"
    SIGINT = "sigint"
    SIGUSR1 = "sigusr1"
    SIGUSR2 = "sigusr2"
    SIGHUP = "sighup"
    PRUNED = "pruned"
    """A hyperparameter search has seen enough of this trial: a decision, no failure."""
    DEVICE_LOST = "device_lost"
    """The context of the device is broken for this process; the next one can go on."""
    HANG = "hang"
    """Another rank does not answer, and this one has waited for it in vain."""
    UNRECOVERABLE = "unrecoverable"
    """Training was given up."""
    KILLED = "killed"
    """The process had no time to say anything; the next start writes this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postmortem:
    """The fields of `postmortem.json`, in its order; docs/public-interface.md describes each."""

    v: int
    exit_reason: str
    exception_type: str | None
    last_step: int
    timestamp: str
    final_metrics: dict[str, Any]
    non_finite_metrics: list[str]
    recovery_actions: list[dict[str, Any]]
    running_time_seconds: float
    exception: dict[str, Any] | None
    advice: list[str]
    incidents: list[dict[str, Any]]
    steps_lost: int
    seconds_lost: float
    skipped_steps: int
    data_quarantined: list[dict[str, Any]]
    changes_in_force: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    not_listed: dict[str, Any]
    incomplete: list[str]
    versions: dict[str, Any]
    hardware: dict[str, Any]
    ledger: str
    goodput: dict[str, Any] = field(default_factory=dict)
    tracker_pages: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the postmortem as its file holds it."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


def postmortem_path(run_dir: str | os.PathLike[str]) -> Path:
    """Return where the postmortem of a run lies."""
    return Path(run_dir) / FILE_NAME


def build_postmortem(
    entries: Iterable[Entry],
    *,
    exit_reason: str,
    exception: BaseException | None,
    last_step: int | None,
    final_metrics: Mapping[str, object] | None,
    started_s: float | None,
    ended_s: float | None,
    versions: Mapping[str, object],
    hardware: Mapping[str, object],
    ledger: str = ledger_path("").as_posix(),
    reading: LedgerReading | None = None,
    environ: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
    quarantined: Iterable[str] = (),
) -> Postmortem:
    """Tell the story of a run from its ledger, in one pass and constant memory; same entries, same postmortem.

    Args:
        entries: The ledger, `iter_ledger(path)` or `iter_run(...)`, to the end of the attempt that ended; one that cannot be read to its end is used as far as it goes.
        exit_reason: What ended the run, an `ExitReason`.
        exception: What was raised, if anything.
        last_step: The last optimizer step; None takes the ledger's. Of a process that was killed, what is known besides it.
        final_metrics: The last metrics; None takes the newest of each in the ledger.
        started_s: When the attempt began, in seconds since 1970; None takes the ledger's.
        ended_s: When it ended, likewise.
        versions: See `environment.versions`.
        hardware: See `environment.hardware`.
        ledger: Where the ledger lies, as seen from the postmortem.
        reading: What `iter_ledger` noted of the file, if it was given the same.
        environ: The environment whose secrets are masked; None means this process's.
        secrets: Others that are masked, too.
        quarantined: Records on the list of those that are left out, in words; the ledger may not tell of all.

    Raises:
        ValueError: the exit reason is none of `ExitReason`.

    """
    reason = ExitReason(exit_reason)
    clean = Cleaner(environ, secrets)
    story = Story(known_actions(), clean)
    problem = _tell(story, entries)
    last = story.attempts[-1] if story.attempts else Attempt(1, 0.0, 0.0, 0, 0)
    if reason is ExitReason.KILLED:  # who writes this is another process, and can only know a lower bound
        last.last_step = last_step = max(last.last_step, last_step or 0)
        story.killed.append(last)
    step = last.last_step if last_step is None else int(last_step)
    said = {each["said"] for each in story.quarantined}
    unsaid = [line for line in map(clean.line, quarantined) if line not in said]
    metrics, not_finite = clean.metrics(last.metrics if final_metrics is None else final_metrics)
    began, ended = _or(started_s, last.began_s), _or(ended_s, last.ended_s)
    return Postmortem(
        v=SCHEMA,
        exit_reason=reason.value,
        exception_type=_exception_type(exception, reason, story, clean),
        last_step=step,
        timestamp=_timestamp(ended),
        final_metrics=metrics,
        non_finite_metrics=not_finite,
        recovery_actions=list(story.recovery_actions),
        running_time_seconds=round(max(0.0, ended - began), 3),
        exception=None if exception is None else _described(exception, clean),
        advice=story.advice(),
        incidents=list(story.incidents),
        steps_lost=story.steps_lost,
        seconds_lost=round(story.seconds_lost, 3),
        # Steps dropped on the device are no plans; the adapter counts them.
        skipped_steps=max(story.skipped_steps, step_of(metrics.get(_SKIPPED)) or 0),
        data_quarantined=[
            *story.quarantined,
            *({"step": None, "attempt": None, "said": line} for line in unsaid[:MOST_LISTED]),
        ],
        changes_in_force=story.changes.in_force(step),
        attempts=[each.to_json() for each in story.attempts],
        not_listed=_not_listed(story),
        incomplete=[clean.line(gap) for gap in _gaps(story, problem, reading)],
        versions=_plain(versions, clean),
        hardware=_plain(hardware, clean),
        ledger=clean.line(ledger),
        goodput=story.spent.to_json(),
        tracker_pages=dict(story.pages),
    )


def _tell(story: Story, entries: Iterable[Entry]) -> str:
    """Let the story take in the entries; return why that ended early, if it did."""
    try:
        for entry in entries:
            story.take(entry)
    except (LedgerError, OSError) as error:  # a broken disk is no reason to say nothing
        return f"the ledger could not be read to its end: {error}"
    return ""


def _gaps(story: Story, problem: str, reading: LedgerReading | None) -> list[str]:
    """Say what is missing of the ledger, and with it perhaps of the postmortem; signals left out are no loss here."""
    gaps = [problem] if problem else []
    if story.lines_lost:
        gaps.append(f"{story.lines_lost} ledger lines were lost while the disk refused them")
    if story.unreadable:
        gaps.append(f"{story.unreadable} ledger lines could not be written in full")
    if reading is not None and reading.torn:
        gaps.append(f"{reading.torn} ledger lines are torn or damaged")
    gaps += [
        f"attempt {each.number} was killed: up to {PAUSE_S:g} s of its ledger may be missing, and its last step is "
        f"{each.last_step} at least"
        for each in story.killed
    ]
    return gaps


def _not_listed(story: Story) -> dict[str, Any]:
    """Count what is older than the newest that are listed."""
    return {
        "incidents": story.incidents_seen - len(story.incidents),
        "recovery_actions": story.actions_seen - len(story.recovery_actions),
        "attempts": story.attempts_seen - len(story.attempts),
    }


def _or(given: float | None, otherwise: float) -> float:
    number = number_of(otherwise if given is None else given)
    return min(seconds_of(number), float(_LATEST_TIME))


def _timestamp(time_s: float) -> str:
    return datetime.fromtimestamp(int(time_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _plain(values: Mapping[str, object], clean: Cleaner) -> dict[str, Any]:
    plain = clean.value(values)
    return plain if isinstance(plain, dict) else {}


# --- the exception ----------------------------------------------------------------------------------------------


def _exception_type(exception: BaseException | None, reason: ExitReason, story: Story, clean: Cleaner) -> str | None:
    """Return the bare class name as the seed has it; where only the ledger knows of an exception, from there."""
    if exception is not None:
        return clean.line(type(exception).__name__)
    if reason not in (ExitReason.EXCEPTION, ExitReason.UNRECOVERABLE):
        return None
    return str(story.last_exception().get("exception", "")).rpartition(".")[2] or None


def _described(exception: BaseException, clean: Cleaner) -> dict[str, Any]:
    """Return what an exception says; the traceback module copes with one that cannot be printed."""
    cls = type(exception)
    message, where, notes = "", "", []
    try:
        seen = traceback.TracebackException(
            cls, exception, exception.__traceback__, limit=-1, lookup_lines=False, compact=True
        )
        message = str(seen)
        where = "".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} in {f.name}" for f in seen.stack[-1:])
        notes = list(getattr(exception, "__notes__", None) or ())
    except ODD_VALUES as error:
        message = f"<an exception that cannot be shown: {type(error).__name__}>"
    return {
        "type": clean.line(f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")),
        "message": clean.text(message, _LONGEST_MESSAGE),
        "where": clean.line(where),
        "notes": [clean.line(note) for note in notes[:_MOST_NOTES]],
    }


# --- reading ----------------------------------------------------------------------------------------------------


def read_postmortem(path: str | os.PathLike[str]) -> Postmortem:
    """Read a postmortem; keys of a known version that are not known here are ignored.

    Raises:
        InputError: it cannot be read, is no postmortem, or is of a newer version, which the text names.

    """
    raw = _parsed(Path(path))
    version = raw.get("v")
    if type(version) is not int:
        raise InputError(f"{path}: is not a postmortem: it has no version v")
    if not SCHEMA - 1 <= version <= SCHEMA:
        raise InputError(
            f"{path}: written with postmortem version {version}, this version reads {SCHEMA - 1} and {SCHEMA}; "
            "use the version of self_healing that wrote it, or a newer one"
        )
    values: dict[str, Any] = {}
    for item in fields(Postmortem):
        if item.name not in raw and item.default_factory is not MISSING:  # added since version 1 was first written
            continue
        if item.name not in raw:
            raise InputError(f"{path}: is not a whole postmortem: {item.name} is missing")
        values[item.name] = raw[item.name]
        if not isinstance(values[item.name], _types_of(str(item.type))):
            raise InputError(f"{path}: {item.name} = {ascii(values[item.name])[:60]}: expected {item.type}")
    return Postmortem(**values)


def _types_of(annotation: str) -> tuple[type, ...]:
    """Return what JSON values a field may hold."""
    names: dict[str, tuple[type, ...]] = {"float": (float, int), "None": (type(None),)}
    plain = {cls.__name__: (cls,) for cls in (int, str, list, dict)}
    return tuple(cls for part in annotation.split(" | ") for cls in (plain | names)[part.partition("[")[0]])


def _parsed(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InputError(f"{path}: is not a regular file; expected a postmortem.json")
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a postmortem.json") from error
    if len(content) > _LARGEST_FILE:
        raise InputError(f"{path}: has more than {_LARGEST_FILE} bytes; expected a postmortem.json")
    try:
        raw: object = json.loads(content.decode("utf-8"), parse_constant=_not_strict)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not JSON; expected a postmortem.json") from error
    if not isinstance(raw, dict):
        raise InputError(f"{path}: is not a JSON object; expected a postmortem.json")
    return raw


def _not_strict(word: str) -> NoReturn:
    """Refuse the words that are JSON only to Python."""
    raise ValueError(word)

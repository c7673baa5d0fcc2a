"""What an attempt came to: the exit status, what was printed and why we ended it, as one cause."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from ..core.discover import discover_patterns
from ..core.errors import ExitCode
from ..core.failure import Severity
from ..diagnosis.text import text_findings
from ..diagnosis.text_finding import TextFinding
from ..readers.log_text import Line
from .torchrun import RankFailure

SHELL = 128
"""What a shell adds to the number of the signal that a program died of."""


class EndedBy(StrEnum):
    """Who ended an attempt."""

    ITSELF = "itself"
    NAN = "nan"
    HANG = "hang"
    SIGNAL = "signal"
    """Somebody has told the supervisor to end."""
    TIME_LIMIT = "time limit"
    """It has run as long as it was to, in a dry run."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What was seen of one attempt from outside."""

    number: int
    status: int | None
    """Exit code, negative for a signal; None where nobody saw it end."""
    ended_by: EndedBy = EndedBy.ITSELF
    because: str = ""
    """Why we have ended it, where we have."""
    findings: Sequence[TextFinding] = ()
    """What its output gives away, the root first."""
    is_nan: bool = False
    """Whether its loss was no number to the last."""
    nan_since_s: float | None = None
    step: int | None = None
    """The last step that was seen; None where nothing says one."""
    metric_lines: int = 0
    """How many lines of metrics were printed."""
    seconds: float = 0.0
    heals_itself: bool = False
    """Whether our healer ran inside it."""
    was_killed_for_memory: bool = False
    """Whether the kernel has killed a process for memory meanwhile."""
    own_code: int | None = None
    """What our healer inside has said its end asks for, where the exit code is lost on the way (torchrun)."""
    rank_failure: RankFailure | None = None
    """The rank that has failed first, where a launcher has started several."""
    changes: tuple[str, ...] = field(default=())
    """What was changed before it, in words."""
    goes_on: str = ""
    """What of it still runs and cannot be ended, in words."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One attempt and its cause."""

    attempt: Attempt
    succeeded: bool
    fine: str = ""
    """The class of the cause, as `heal diagnose` names it."""
    says: str = ""
    """The cause, in one sentence."""
    evidence: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    trouble_since_s: float | None = None
    """When it began to go wrong, where that is known: a checkpoint of later is not trusted."""


def as_note(outcome: Outcome) -> dict[str, object]:
    """Return what a ledger keeps of it: all that a decision depends on, and what a person wants to know."""
    attempt = outcome.attempt
    return {
        "attempt": attempt.number, "status": attempt.status, "ended_by": attempt.ended_by.value, "class": outcome.fine,
        "says": outcome.says, "evidence": list(outcome.evidence), "seconds": round(attempt.seconds, 3),
        "heals_itself": attempt.heals_itself, "succeeded": outcome.succeeded, "step": attempt.step,
        "metric_lines": attempt.metric_lines, "goes_on": attempt.goes_on,
    }  # fmt: skip


class IncompleteNote(Exception):
    """A note of an earlier version, which does not hold all that a decision depends on."""


def from_note(note: Mapping[str, object], changes: tuple[str, ...]) -> Outcome:
    """Return what a ledger has kept, as far as a decision depends on it.

    Raises:
        IncompleteNote: an entry is missing.
        TypeError: an entry is of another kind than `as_note` writes.
        ValueError: it was ended by nobody that is known here.

    """
    step, status = _entry(note, "step", int | None), _entry(note, "status", int | None)
    return Outcome(
        attempt=Attempt(
            number=_entry(note, "attempt", int), status=status, step=step, changes=changes,
            ended_by=EndedBy(_entry(note, "ended_by", str)), metric_lines=_entry(note, "metric_lines", int),
            goes_on=_entry(note, "goes_on", str),
        ),
        succeeded=_entry(note, "succeeded", bool), fine=_entry(note, "class", str), says=_entry(note, "says", str),
    )  # fmt: skip


def _entry(note: Mapping[str, object], key: str, kind: Any) -> Any:
    if key not in note:
        raise IncompleteNote(key)
    value = note[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{key} is {value!r}")
    return value


_BY_CODE: dict[int, tuple[str, str]] = {
    ExitCode.PREEMPTED: ("preempted", "the run was asked to end and has saved its state"),
    ExitCode.STALLED: ("hang", "the run has found itself stalled"),
    ExitCode.DEVICE_LOST: ("gpu_hardware", "the process could no longer use its device; another one can"),
    ExitCode.GAVE_UP: ("given_up", "the healer inside the run has given up: the same would happen again"),
}
_BY_CODE_OF_SHELL = {
    126: ("permission_error", "exit code 126: a shell was not allowed to run the command"),
    127: ("missing_dependency", "exit code 127: a shell has not found the command"),
}
"""What says something only where the output does not say more."""
_BY_SIGNAL = {
    signal.SIGKILL: ("killed_unknown", "killed by SIGKILL: by somebody, or by the kernel for memory"),
    signal.SIGBUS: ("oom_shm", "killed by SIGBUS, most often because shared memory (/dev/shm) is full"),
    signal.SIGSEGV: ("segfault", "native code crashed (SIGSEGV)"),
    signal.SIGTERM: ("preempted", "asked to end by SIGTERM from outside"),
    signal.SIGINT: ("user_interrupt", "interrupted (SIGINT)"),
    signal.SIGHUP: ("preempted", "asked to end by SIGHUP from outside"),
}


def outcome_of(attempt: Attempt) -> Outcome:
    """Return what an attempt came to."""
    if attempt.ended_by is not EndedBy.ITSELF:
        return _ended_by_us(attempt)
    if attempt.status == 0:
        if attempt.is_nan and not attempt.heals_itself:
            return _of_nan(attempt, "the loss is NaN at the end, though the exit code is 0")
        return Outcome(attempt=attempt, succeeded=True)
    if attempt.own_code is not None and attempt.status not in _BY_CODE:
        return replace(outcome_of(replace(attempt, status=attempt.own_code, own_code=None)), attempt=attempt)
    if attempt.rank_failure is not None:
        return _of_rank(attempt, attempt.rank_failure)
    number = _signal_of(attempt.status)
    fine, says = _BY_CODE.get(attempt.status or 0) or _of_signal(number) or ("crash", f"exit code {attempt.status}")
    if attempt.was_killed_for_memory and number in (None, signal.SIGKILL):
        fine, says = "oom_host", "the kernel has killed a process because the machine's memory ran out"
    found = _root(attempt.findings)
    if (
        found is not None
        and fine in ("crash", "preempted", "killed_unknown", "hang")
        and attempt.status not in _BY_CODE
    ):
        return _of_text(attempt, found)
    if fine == "crash":
        fine, says = _BY_CODE_OF_SHELL.get(attempt.status or 0, (fine, says))
    return Outcome(attempt=attempt, succeeded=False, fine=fine, says=says, fixes=found.fix if found else ())


def _of_rank(attempt: Attempt, failure: RankFailure) -> Outcome:
    """Return what the first rank that failed has died of: what the others say of it is a consequence."""
    of_rank = replace(attempt, rank_failure=None)
    if failure.traceback or failure.message:
        lines = (
            Line(number, text) for number, text in enumerate((failure.traceback or failure.message).splitlines(), 1)
        )
        found = text_findings(lines, discover_patterns("self_healing.patterns"))
        of_rank = replace(of_rank, status=failure.code or 1, findings=found or attempt.findings)
    elif failure.code is not None and (failure.code < 0 or failure.code in _BY_CODE):
        of_rank = replace(of_rank, status=failure.code, findings=())
    outcome = outcome_of(of_rank)
    return replace(outcome, attempt=attempt, says=f"rank {failure.rank}: {outcome.says}")


def _ended_by_us(attempt: Attempt) -> Outcome:
    if attempt.ended_by is EndedBy.NAN:
        return _of_nan(attempt, attempt.because)
    fine = {EndedBy.HANG: "hang", EndedBy.TIME_LIMIT: "time_limit"}.get(attempt.ended_by, "user_interrupt")
    return Outcome(attempt=attempt, succeeded=False, fine=fine, says=attempt.because)


def _of_nan(attempt: Attempt, says: str) -> Outcome:
    found = next((each for each in attempt.findings if each.fine == "nan_loss"), None)
    return Outcome(
        attempt=attempt, succeeded=False, fine="nan_loss", says=says, trouble_since_s=attempt.nan_since_s,
        evidence=_lines(found), fixes=found.fix if found is not None else (),
    )  # fmt: skip


def _of_text(attempt: Attempt, found: TextFinding) -> Outcome:
    since = attempt.nan_since_s if found.fine == "nan_loss" else None
    return Outcome(
        attempt=attempt, succeeded=False, fine=found.fine, says=f"{found.says} {found.because}".strip(),
        evidence=_lines(found), fixes=found.fix, trouble_since_s=since,
    )  # fmt: skip


def _root(findings: Sequence[TextFinding]) -> TextFinding | None:
    """Return the first cause among what was found; what only repeats another process's end comes last."""
    grave = [each for each in findings if each.severity is Severity.ERROR]
    return next((each for each in grave if not each.is_echo), grave[0] if grave else None)


def _lines(found: TextFinding | None) -> tuple[str, ...]:
    return tuple(seen.text for seen in found.evidence[:3]) if found is not None else ()


def _signal_of(status: int | None) -> int | None:
    """Return the signal that a program died of, also where a shell between has made a number of it."""
    if status is None:
        return signal.SIGKILL
    if status < 0:
        return -status
    return status - SHELL if SHELL < status < SHELL + 65 else None


def _of_signal(number: int | None) -> tuple[str, str] | None:
    if number is None:
        return None
    try:
        name = signal.Signals(number).name
    except ValueError:
        return None
    return _BY_SIGNAL.get(signal.Signals(number), ("crash", f"killed by {name}"))

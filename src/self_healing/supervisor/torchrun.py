"""Commands that start several processes by torchrun: what makes their restarts reliable, and which rank failed first.

torchrun itself ends with 1 whatever happened. It says more in two places: each rank whose entry point is recorded
(`torch.distributed.elastic.multiprocessing.errors.record`) leaves `error.json` in the log folder, and a summary at the
end of the output names the code of every rank that had ended by itself. A rank that was killed leaves no file.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ..core.discover import discover_patterns
from ..core.errors import ExitCode
from ..diagnosis import text_findings
from ..readers.log_text import Line

SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Unless it is set, processes that torchrun starts again find the addresses of those that are gone, and cannot connect."""
LARGEST = 16 * 2**20
MOST_FILES = 4096
_ENTRY = re.compile(r"\s{0,8}(time|host|rank|exitcode|error_file)\s{0,8}: (.{1,4000})")
_HEAD = re.compile(r"\s{0,4}\[\d{1,6}\]:\s*")
_BEGINS = re.compile(r".{0,200}ChildFailedError")
_RANK = re.compile(r"(\d{1,9})(?: \(local_rank: (\d{1,9})\))?")
_CODE = re.compile(r"(-?\d{1,9})(?: +\(pid: (\d{1,9})\))?")
_FELLED = frozenset({-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})
"""Ends that no other rank brings about; a rank that waits for another in vain raises, or aborts itself."""
_AT_THE_SAME_TIME_S = 5.0
"""Ranks that end within this time may have ended because of each other; the summary has whole seconds."""


def exports(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to the environment of a launcher, so that processes which it starts again find each other."""
    return {} if SHARED_STORE in environ else {SHARED_STORE: "1"}


# -- which rank failed -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How one rank ended."""

    rank: int
    local_rank: int | None = None
    code: int | None = None
    """Its exit code, negative for a signal; None where only its error file is known."""
    pid: int | None = None
    host: str = ""
    time_s: float | None = None
    message: str = ""
    """The exception as Python prints it, where it was recorded."""
    traceback: str = ""
    error_file: Path | None = None

    def __str__(self) -> str:
        """Say it in a sentence."""
        how = self.message.strip().split("\n", 1)[0][:300]
        if not how and self.code is not None:
            how = f"ended by {_signal_name(self.code)}" if self.code < 0 else f"ended with code {self.code}"
        where = f" on {self.host}" if self.host else ""
        return f"rank {self.rank}{where}: {how or 'failed'}"


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class SummaryReader:
    """Reads torchrun's summary out of the lines of its output, in constant memory."""

    def __init__(self) -> None:
        self.failures: list[RankFailure] = []
        """In the order of the summary, the one that torchrun takes for the first one last."""
        self._entry: dict[str, str] | None = None

    def see(self, line: str) -> None:
        """Look at the next line, without colours."""
        if _BEGINS.match(line):  # torchrun has started its processes again, and this is how those ended
            self.failures, self._entry = [], None
        elif _HEAD.fullmatch(line):
            self._entry = {}
        elif self._entry is not None:
            found = _ENTRY.match(line)
            if found is None:
                return
            self._entry[found[1]] = found[2].strip()
            if found[1] == "error_file":  # the last one before its traceback
                self._take(self._entry)
                self._entry = None

    def _take(self, entry: Mapping[str, str]) -> None:
        rank, code = _RANK.match(entry.get("rank", "")), _CODE.match(entry.get("exitcode", ""))
        if rank is None or code is None or len(self.failures) >= MOST_FILES:
            return
        file = entry["error_file"]
        self.failures.append(
            RankFailure(
                rank=int(rank[1]),
                local_rank=int(rank[2]) if rank[2] else None,
                code=int(code[1]),
                pid=int(code[2]) if code[2] else None,
                host=entry.get("host", ""),
                time_s=_seconds(entry.get("time", "")),
                error_file=None if file.startswith("<N/A>") else Path(file),
            )
        )


def _seconds(text: str) -> float | None:
    try:
        return datetime.strptime(text[:19], "%Y-%m-%d_%H:%M:%S").timestamp()  # noqa: DTZ007  # torchrun's is local time
    except ValueError:
        return None


def read_errors(log_folder: Path, since_s: float = 0.0) -> list[RankFailure]:
    """Return what ranks have recorded of their exceptions in the last start below a log folder, the first one first.

    Args:
        log_folder: What `--log-dir` names; below it lie `<run>/attempt_<n>/<local rank>/error.json`.
        since_s: When the attempt began, for a folder that others share.

    """
    starts: dict[Path, list[RankFailure]] = {}
    for path in _error_files(log_folder):
        failure = _read_error(path)
        if failure is not None and (failure.time_s or 0.0) >= since_s - 1.0:
            starts.setdefault(path.parent.parent, []).append(failure)
    if not starts:
        return []
    last = max(starts, key=lambda folder: max(each.time_s or 0.0 for each in starts[folder]))
    return sorted(starts[last], key=lambda each: (each.time_s or 0.0, _written(each.error_file)))


def _error_files(folder: Path) -> Iterable[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        if "error.json" in names:
            found.append(Path(place) / "error.json")
            if len(found) == MOST_FILES:
                break
    return found


def _read_error(path: Path) -> RankFailure | None:
    try:
        with path.open("rb") as file:
            data = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    message = data.get("message") if isinstance(data, dict) else None
    if isinstance(message, str):
        message = {"message": message, "extraInfo": {"timestamp": data.get("timestamp")}}
    if not isinstance(message, dict):
        return None
    more = message.get("extraInfo")
    more = more if isinstance(more, dict) else {}
    try:
        time_s = float(more.get("timestamp", 0))
    except (TypeError, ValueError):
        time_s = _written(path)
    place = path.parent.name
    rank = int(place) if place.isdecimal() and len(place) < 10 else 0
    said, trace = message.get("message"), more.get("py_callstack")
    return RankFailure(
        rank=rank,
        local_rank=rank,
        time_s=time_s,
        message=said if isinstance(said, str) else "",
        traceback=trace if isinstance(trace, str) else "",
        error_file=path,
    )


def _written(path: Path | None) -> float:
    try:
        return path.stat().st_mtime if path is not None else 0.0
    except OSError:
        return 0.0


def first_failure(summary: Sequence[RankFailure], errors: Sequence[RankFailure]) -> RankFailure | None:
    """Return the rank that has failed by itself: what the others say of it is a consequence.

    Args:
        summary: What torchrun has said at its end (`SummaryReader.failures`).
        errors: What the ranks have recorded (`read_errors`).

    """
    failures = _joined(summary, errors)
    if not failures:
        return None
    began_s = min((each.time_s for each in failures if each.time_s is not None), default=0.0)
    together = [each for each in failures if each.time_s is None or each.time_s - began_s <= _AT_THE_SAME_TIME_S]
    return min(enumerate(together), key=lambda item: (_weight(item[1]), item[1].time_s or began_s, item[0]))[1]


def _weight(failure: RankFailure) -> int:
    """Return how likely an end is a consequence of another rank's."""
    if failure.code in _FELLED:
        return 0
    if failure.code == -signal.SIGTERM:  # sent by torchrun to those that are left
        return 4
    if failure.code in set(ExitCode):  # our healer has looked at what happened to this rank
        return 1
    if failure.message or failure.traceback:
        return 3 if _is_echo(failure.traceback or failure.message) else 1
    return 3 if failure.code == -signal.SIGABRT else 2


def _is_echo(text: str) -> bool:
    """Say whether a text only tells that another process has gone."""
    lines = (Line(number, line) for number, line in enumerate(text.splitlines(), 1))
    findings = text_findings(lines, discover_patterns("self_healing.patterns"))
    return bool(findings) and findings[0].is_echo


def _joined(summary: Sequence[RankFailure], errors: Sequence[RankFailure]) -> list[RankFailure]:
    """Put together what is known of each rank; torchrun's own choice comes first where nothing tells them apart."""
    by_file = {each.error_file: each for each in errors}
    by_rank = {each.local_rank: each for each in errors}
    joined: list[RankFailure] = []
    for told in reversed(summary):
        recorded = by_file.get(told.error_file) or (None if told.error_file else by_rank.get(told.local_rank))
        if recorded is not None:
            told = replace(  # noqa: PLW2901
                told, message=recorded.message, traceback=recorded.traceback, error_file=recorded.error_file
            )
        joined.append(told)
    known = {each.error_file for each in joined} | {None}
    return joined + [each for each in errors if each.error_file not in known]

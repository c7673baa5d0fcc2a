"""Read all that a run directory holds of a run's story: ledgers of every rank and of the supervisor, and what lies beside."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import InputError, LedgerError
from ..core.heartbeat import read_heartbeats
from ..core.ledger import Entry, LedgerReading, iter_ledger
from ..core.run_directory import healing_folder, ledger_path, supervisor_ledger_path
from ..core.run_ledgers import iter_run
from ..core.signal import Metrics
from ..readers import open_log, open_recording, read_blocks, read_metrics
from ..readers.recording import MetricsRecording
from .clean import Cleaner
from .model import RankFacts, RunStory
from .postmortem import postmortem_path, read_postmortem

MOST_RANKS = 256
MOST_RECORDS = 500
_LARGEST_LIST = 4 * 2**20
_RANK = re.compile(r"ledger\.rank(\d{1,9})\.jsonl")
_ATTEMPT = re.compile(r"attempt-(\d{1,9})")
WHAT_IS_READ = (
    "a run directory is what heal run --run-dir names, or the output_dir of a guarded trainer, with a folder healing/ in it; "
    "what a log or trainer_state.json alone tells is shown by heal diagnose"
)


def run_directory(path: str | Path) -> Path:
    """Return the run directory that is meant: itself, its folder `healing`, or a ledger in that.

    Raises:
        InputError: there is no such folder.

    """
    found = Path(path)
    try:
        if found.is_file() and found.suffix == ".jsonl":
            found = found.parent
        if not found.is_dir():
            what = "is not a folder" if found.exists() else "there is no such folder"
            raise InputError(f"{path}: {what}; {WHAT_IS_READ}")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    is_ours = found.name == "healing" and not healing_folder(found).is_dir()
    return found.absolute().parent if is_ours else found.absolute()


def ranks_of(run_dir: Path) -> list[int]:
    """Return the ranks other than the first that have written a ledger."""
    with suppress(OSError):
        names = [path.name for path in healing_folder(run_dir).iterdir()]
        return sorted(int(hit[1]) for name in names if (hit := _RANK.fullmatch(name)))[:MOST_RANKS]
    return []


def home_of(run_dir: Path) -> Path:
    """Return where the training itself keeps its ledger: a supervised one in its `output_dir`, which its heartbeat names."""
    if not ledger_path(run_dir).exists():
        for beat in read_heartbeats(run_dir):
            with suppress(OSError, ValueError):
                home = Path(beat.run_dir)
                if home.is_absolute() and ledger_path(home, beat.rank).is_file():
                    return home
    return run_dir


def read_run(path: str | Path, clean: Cleaner | None = None) -> RunStory:
    """Read a whole run.

    Raises:
        InputError: there is no such folder, or nothing of a run in it.
        LedgerError: its ledger is none, or of a version that is not read here.

    """
    run_dir = run_directory(path)
    story = RunStory(clean)
    reading = LedgerReading()
    home = home_of(run_dir)
    own, supervisor, others = ledger_path(home), supervisor_ledger_path(run_dir), ranks_of(home)
    if not own.exists() and not supervisor.exists() and not others:
        raise InputError(f"{path}: holds no ledger of a run (healing/ledger.jsonl); {WHAT_IS_READ}")
    if not own.exists() and others:  # of another machine: the first rank of this one tells the story
        own = ledger_path(home, others.pop(0))
    main = ((entry, True) for entry in iter_run(own if own.exists() else None, supervisor, reading))
    streams: list[Iterator[tuple[Entry, bool]]] = [main]
    streams += [_of_rank(ledger_path(home, rank), story) for rank in others]
    for entry, is_main in heapq.merge(*streams, key=lambda item: item[0].time):
        story.take(entry, is_main=is_main)
    if not story.entries:
        raise InputError(f"{path}: its ledger holds nothing that can be read ({reading.torn} damaged lines)")
    if reading.torn:
        story.outside.incomplete.append(f"{reading.torn} ledger lines are torn or damaged")
    if reading.lost:
        story.outside.incomplete.append(f"{reading.lost} ledger lines were lost while the disk refused them")
    look_beside(run_dir, story)
    return story


def _of_rank(path: Path, story: RunStory) -> Iterator[tuple[Entry, bool]]:
    """Yield the entries of another rank; a ledger that cannot be read is said, and costs no more."""
    try:
        for entry in iter_ledger(path):
            yield entry, False
    except LedgerError as error:
        story.outside.incomplete.append(story.clean.line(str(error)))


def attempt_folders(healing: Path) -> list[Path]:
    """Return the folders that a supervisor has made for its attempts, the first attempt first."""
    with suppress(OSError):
        numbered = [(hit, path) for path in healing.iterdir() if (hit := _ATTEMPT.fullmatch(path.name))]
        return [path for hit, path in sorted(numbered, key=lambda item: int(item[0][1]))]
    return []


def look_beside(run_dir: Path, story: RunStory, *, with_logs: bool = True) -> None:
    """Take in what lies beside the ledgers: heartbeats, the postmortem, records left out, and logs where they are needed."""
    outside, clean = story.outside, story.clean
    outside.name = clean.line(run_dir.name)
    for beat in read_heartbeats(run_dir):
        story.ranks.setdefault(beat.rank, RankFacts(beat.rank)).beat = beat
    home = home_of(run_dir)
    outside.records = _records(healing_folder(home) / "quarantine.jsonl", clean)
    with suppress(InputError):
        told = read_postmortem(postmortem_path(home if postmortem_path(home).exists() else run_dir))
        outside.exit_reason = clean.line(told.exit_reason)
        outside.versions = {clean.line(key): clean.line(value) for key, value in told.versions.items()}
        outside.hardware = {clean.line(key): _plain(value, clean) for key, value in told.hardware.items() if value}
        is_of_its_end = story.ended == told.exit_reason  # else it tells of an attempt before
        outside.advice = [clean.line(each) for each in told.advice] if is_of_its_end else []
        raised = (told.exception or {}) if is_of_its_end else {}
        outside.exception = clean.line(f"{raised.get('type', '')}: {raised.get('message', '')}".strip(": "))
    if with_logs and not {"loss", "eval_loss", "grad_norm", "reward"} & story.curves.keys():
        _curves_from_logs(run_dir, story)


def _plain(value: Any, clean: Cleaner) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(clean.line(each) for each in value[:16])
    return clean.line(value)


def _records(path: Path, clean: Cleaner) -> list[dict[str, str]]:
    """Return the records that are left out, as listed; a line that is none is passed over."""
    found: list[dict[str, str]] = []
    try:
        if not path.is_file():
            return found
        with path.open("rb") as file:
            lines = file.read(_LARGEST_LIST).decode("utf-8", "replace").splitlines()
    except OSError:
        return found
    for line in lines[:MOST_RECORDS]:
        with suppress(ValueError, RecursionError):
            raw = json.loads(line)
            if isinstance(raw, dict):
                keys = ("index", "where", "exception", "message", "replaced_by")
                found.append({key: clean.line("" if raw.get(key) is None else raw[key]) for key in keys})
    return found


# --- curves of a run whose ledger has none ----------------------------------------------------------------------


def _curves_from_logs(run_dir: Path, story: RunStory) -> None:
    """Take the curves from what each supervised attempt has printed, or else from the trainer's own record."""
    by_number = {each.number: each for each in story.account.attempts if not each.has_begun}
    for folder in attempt_folders(healing_folder(run_dir)):
        attempt = by_number.pop(int(folder.name.rpartition("-")[2]), None)
        for name in ("output.old.log", "output.log"):
            with suppress(InputError, OSError), open_log(folder / name) as file:
                for seen in read_metrics(read_blocks(file, name=name)):
                    story.take_observed(seen.signal.step, seen.signal.values)
                    if attempt is not None:  # the supervisor itself does not know where it began
                        attempt.first_step, attempt = max(0, seen.signal.step - 1), None
                story.outside.curves_from = "what the attempts printed"
    if story.curves:
        return
    with suppress(InputError, OSError):
        recording = open_recording(run_dir)
        if isinstance(recording, MetricsRecording):
            for observed in recording.observations():
                if isinstance(observed.signal, Metrics):
                    story.take_observed(observed.signal.step, observed.signal.values)
            story.outside.curves_from = story.clean.line(recording.path.name)

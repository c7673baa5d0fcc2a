"""The format `run-folder`: the files in a folder that tell most about a run, of however many there are."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...core.errors import InputError
from ...core.run_directory import EARLIER
from ..source import READABLE, Candidate, InputFormat, Item, Reading

MOST_ENTRIES = 50_000
"""Files and folders that are looked at; what lies beyond is named, not read."""
DEEPEST = 5
MOST_OF_A_KIND = 6
"""Files of one kind that are read, the newest."""
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")
_PASSED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_KINDS = {
    "ledger": re.compile(r"ledger\.jsonl"),
    "supervisor": re.compile(r"ledger\.supervisor\.jsonl"),
    "state": re.compile(r"trainer_state\.json"),
    "wandb": re.compile(r"run-.*\.wandb"),
    "trackio": re.compile(r".*\.db"),
    "tensorboard": re.compile(r"events\.out\.tfevents\..*"),
    "table": re.compile(r"(?:.*metrics|history|log_history|progress|train_log|training_log)\.(?:csv|jsonl|json)"),
    "results": re.compile(r"all_results\.json"),
    "error": re.compile(r"error\.json"),
    "log": re.compile(
        r".*\.(?:log|out|err|stdout|stderr)(?:\.gz|\.\d{1,3})?|nohup\.out|slurm-.*|std(?:out|err)(?:\.txt)?|.*log.*\.txt"
    ),
    "other": re.compile(r".*\.(?:json|jsonl|csv|tsv|txt)(?:\.gz)?"),
}
MOST_RANKS = 128
"""Files of the processes of one run, which count as one."""
_OF_A_RANK = re.compile(r"(?<![A-Za-z])(rank|worker|task|proc|process|node)([-_.]?)\d{1,5}(?!\d)", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt_\d{1,6}")
"""The folder that torchrun makes for each start; in it, each process has one that is called by its number."""
_SUPERVISED = re.compile(r"attempt-(\d{1,9})")
"""The folder that `heal run` makes for each attempt."""
_TELLS_NOTHING = re.compile(r"debug(?:-internal|-core)?\.log|.*\.lock|heartbeat(?:\.rank\d+)?\.json|heal\.log")
_NUMBERS = ("state", "wandb", "trackio", "tensorboard", "table", "results")
"""Kinds that hold the same metrics, the most exact first: the first that is there is enough."""


class _Found(NamedTuple):
    """A file of a known kind."""

    rank: tuple[int, float]
    """The number of its checkpoint, and when it was written."""
    path: Path


class RunFolder(InputFormat):
    """An output folder, a checkpoint, or the folder of a tracker."""

    order = 1

    def knows(self, candidate: Candidate) -> bool:
        """Take every folder."""
        return candidate.is_folder

    def parts(self, candidate: Candidate, reading: Reading) -> list[Path]:
        """Return our ledger, the newest metrics and the newest logs.

        Raises:
            InputError: the folder cannot be read, or holds nothing that is known.

        """
        kinds: dict[str, list[_Found]] = defaultdict(list)
        for path in _files(candidate.path, reading):
            kind = _kind_of(path)
            if kind and not (kind == "log" and _is_empty(path)):
                kinds[kind].append(_Found(_rank(path), path))
        ledgers = _newest(kinds["ledger"], 1) or _newest(kinds["supervisor"], 1)
        chosen = ledgers + _newest(kinds["state"], 1)
        for kind in _NUMBERS[1:]:
            if len(chosen) == len(ledgers):
                chosen += _newest(kinds[kind], MOST_OF_A_KIND)
        chosen += _of_last_attempt(kinds["error"])
        chosen += _newest_groups(_without_earlier_attempts(kinds["log"]), MOST_OF_A_KIND)
        chosen = chosen or _newest(kinds["other"], MOST_OF_A_KIND)
        if not chosen:
            raise InputError(f"{candidate.name}: is a folder without anything to diagnose; {READABLE}")
        return chosen

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Refuse: a folder is read file by file."""
        raise InputError(f"{candidate.name}: is a folder; name a file")


def _newest(found: list[_Found], most: int) -> list[Path]:
    """Return the newest files of a kind, the oldest of them first."""
    return [item.path for item in sorted(found)[-most:]]


def _newest_groups(found: list[_Found], most: int) -> list[Path]:
    """Return the newest logs; those of the processes of one run belong together, whichever wrote last."""
    groups: dict[Path, list[_Found]] = defaultdict(list)
    for item in found:
        groups[_without_rank(item.path)].append(item)
    newest = sorted(groups.values(), key=max)[-most:]
    return [item.path for group in newest for item in sorted(group)[:MOST_RANKS]]


def _of_last_attempt(found: list[_Found]) -> list[Path]:
    """Return the error files of the last start, the first failure first."""
    last = max(found).path.parent.parent if found else None
    return [item.path for item in sorted(found) if item.path.parent.parent == last][:MOST_OF_A_KIND]


def _without_earlier_attempts(found: list[_Found]) -> list[_Found]:
    """Leave out what earlier attempts of a supervised command have printed: what came of them is in its ledger."""
    attempts = [int(hit[1]) for item in found if (hit := _SUPERVISED.fullmatch(item.path.parent.name))]
    last = max(attempts, default=0)
    return [item for item in found if not (hit := _SUPERVISED.fullmatch(item.path.parent.name)) or int(hit[1]) == last]


def _without_rank(path: Path) -> Path:
    folder = path.parent
    if folder.name.isdecimal() and _ATTEMPT.fullmatch(folder.parent.name):
        return folder.parent / path.name
    return folder.parent / _OF_A_RANK.sub(r"\1", folder.name) / _OF_A_RANK.sub(r"\1", path.name)


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _rank(path: Path) -> tuple[int, float]:
    hit = _CHECKPOINT.fullmatch(path.parent.name)
    try:
        written = path.stat().st_mtime
    except OSError:
        written = 0.0
    return int(hit[1]) if hit else 0, written


def _kind_of(path: Path) -> str:
    if _TELLS_NOTHING.fullmatch(path.name):
        return ""
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(path.name)), "")


def _files(folder: Path, reading: Reading) -> Iterator[Path]:
    """Yield the files in and below a folder, near ones first; links to folders are not followed."""
    waiting, looked_at = [(folder, 0)], 0
    for here, depth in waiting:  # grows while it is gone through
        try:
            with os.scandir(here) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if here == folder:
                raise InputError(f"{folder}: the folder cannot be read ({error.strerror})") from error
            reading.damage.append(f"{here}: the folder cannot be read ({error.strerror})")
            continue
        for entry in listed:
            looked_at += 1
            if looked_at > MOST_ENTRIES:
                reading.damage.append(f"{folder}: holds more than {MOST_ENTRIES:,} files; the rest was not looked at")
                return
            if entry.is_dir(follow_symlinks=False):
                is_of_another = entry.name == EARLIER and here.name == "healing"
                if depth < DEEPEST and entry.name not in _PASSED and entry.name[0] != "." and not is_of_another:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.is_file():
                yield Path(entry.path)

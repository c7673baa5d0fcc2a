"""A small file by which whoever supervises a training from outside sees that it gets on, and what it is doing.

The thread that trains never touches the file, and no clock is read here: whoever writes says when. It is put in
place by a rename, so that a reader sees an old one or a new one, and is not brought to the disk (fsync): after a crash
of the machine nobody is left to read it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from .run_directory import healing_folder, run_directory_of

VERSION = 1
_LARGEST = 2**16
_NAME = re.compile(r"heartbeat(?:\.rank(\d{1,9}))?\.json")
_QUIET = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


class Doing(StrEnum):
    """What a training is doing, as far as it matters to how long it may be silent."""

    START_UP = "start-up"
    """Up to the end of the first step, which may compile."""
    STEP = "step"
    EVALUATION = "evaluation"
    SAVING = "saving"
    RESTORING = "restoring"
    """An earlier state is put back, or training is entered anew from a checkpoint."""
    WAITING = "waiting"
    """A pause before something outside of the run is tried again; `time_s` goes on meanwhile."""
    ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a training process last said of itself. Two that differ mean that it got on in between."""

    pid: int
    host: str
    rank: int
    attempt: int
    """The number of the attempt in the ledger of the rank."""
    started_s: float
    """When this training began, by the clock of its machine: what is older than a process belongs to one before it."""
    time_s: float
    """When the thread that trains last got on, not when it was written: a thread that hangs does not move it."""
    step: int
    phase: Doing
    heals: bool
    """Whether our healer acts in this process, so that what it heals itself is left to it."""
    run_dir: str
    """The folder of its ledger, its postmortem and its checkpoints, which may be another than that of this file."""
    launch: int | None = None
    """For which time a supervisor has started the command (`SELF_HEALING_ATTEMPT`)."""
    ended: str | None = None
    """How the training ended, as in the postmortem; None while it runs, and of a process that was killed."""
    exit_code: int | None = None
    """What its end asks for (75, 77, 78), also where the code of the process is lost on the way, as under torchrun."""

    @property
    def heals_now(self) -> bool:
        """Whether there is a training that is looked after from inside, if its process is alive."""
        return self.heals and self.ended is None

    @property
    def training(self) -> tuple[int, str, int, float]:
        """Which training of which process it is of."""
        return self.rank, self.host, self.pid, self.started_s

    def is_new(self, before: Iterable[Heartbeat], launch: int | None = None) -> bool:
        """Say whether it is of an attempt, and not left behind by one before it: of those, `before` was read.

        No times are compared: clocks are set back now and then.
        """
        is_of_launch = None in (launch, self.launch) or self.launch == launch
        return is_of_launch and self.training not in {each.training for each in before}

    def to_json(self) -> dict[str, object]:
        """Return what is written."""
        return {"v": VERSION, **asdict(self)}


def heartbeat_path(run_dir: str | os.PathLike[str], rank: int = 0) -> Path:
    """Return where the heartbeat of a rank lies: `healing/heartbeat.json`, other ranks `healing/heartbeat.rank3.json`."""
    return healing_folder(run_dir) / ("heartbeat.json" if rank == 0 else f"heartbeat.rank{rank}.json")


def read_heartbeat(run_dir: str | os.PathLike[str], rank: int = 0) -> Heartbeat | None:
    """Return what a rank last said of itself; None where there is nothing that can be read and understood."""
    return _read(heartbeat_path(run_dir, rank))


def read_heartbeats(run_dir: str | os.PathLike[str]) -> tuple[Heartbeat, ...]:
    """Return what every rank last said of itself, by rank."""
    try:
        names = [path.name for path in healing_folder(run_dir).iterdir()]
    except OSError:
        return ()
    ranks = sorted(int(found[1] or 0) for name in names if (found := _NAME.fullmatch(name)) is not None)
    return tuple(beat for rank in ranks if (beat := read_heartbeat(run_dir, rank)) is not None)


def _read(path: Path) -> Heartbeat | None:
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _QUIET)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _parsed(json.loads(os.read(descriptor, _LARGEST)))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)


def _parsed(data: Any) -> Heartbeat | None:
    match data:
        case {
            "v": 1,
            "pid": int(),
            "host": str(),
            "rank": int(),
            "attempt": int(),
            "started_s": float() | int(),
            "time_s": float() | int(),
            "step": int(),
            "phase": str(phase),
            "heals": bool(),
            "run_dir": str(),
            "launch": int() | None,
            "ended": str() | None,
            "exit_code": int() | None,
        } if phase in set(Doing):
            known = {field.name: data[field.name] for field in fields(Heartbeat)}
            return Heartbeat(**{**known, "phase": Doing(phase)})
        case _:
            return None


def write_heartbeat(run_dir: str | os.PathLike[str], told: Heartbeat) -> None:
    """Put a heartbeat in place, whole or not at all.

    Raises:
        OSError: it cannot be written.

    """
    path = heartbeat_path(run_dir, told.rank)
    content = (json.dumps(told.to_json(), allow_nan=False) + "\n").encode("ascii")
    temporary = path.with_name(f".{path.name}.{told.pid}.tmp")
    try:
        descriptor = _create(temporary)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = _create(temporary)
    try:
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _QUIET, 0o600)


def remove_leftovers(run_dir: str | os.PathLike[str], rank: int, *, older_than_s: float) -> None:
    """Remove what writers that were killed have left half-written before a time; nothing is raised."""
    target = heartbeat_path(run_dir, rank)
    with suppress(OSError):
        for path in target.parent.glob(f".{target.name}.*.tmp"):
            if path.lstat().st_mtime < older_than_s:
                path.unlink()


def folder_for(environ: Mapping[str, str], run_dir: str | os.PathLike[str]) -> Path:
    """Return where the heartbeat of a training goes: where its supervisor looks, else into its own folder."""
    return run_directory_of(environ) or Path(run_dir)

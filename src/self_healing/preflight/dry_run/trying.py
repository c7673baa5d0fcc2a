"""One trial of a command: started under the supervisor with the hook on its path, kept silent, ended with all that came of it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

from ...core.secrets import strip_control
from ...supervisor.outcome import EndedBy, Outcome, outcome_of
from ...supervisor.process.shim import become_subreaper
from ...supervisor.running import Running, Start
from ...supervisor.settings import RunSettings
from ...supervisor.signals import SignalDesk
from ...supervisor.watch.live_text import Progress
from .events import Events, read_events

HOOK = Path(__file__).parent / "hook"
VARIABLE = "SELF_HEALING_DRY_RUN"
LAST_LINES = 10
GRACE_S = 3.0
"""What is tried out has nothing to save when it is ended."""
LAST_BYTES = 64 * 2**10


class Interrupted(Exception):
    """The user has ended it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


@dataclass(frozen=True)
class Trial:
    """What one trial came to."""

    outcome: Outcome
    events: Events
    log: Path
    """What it printed."""
    most_s: float
    """How long it was to take at most."""

    @property
    def succeeded(self) -> bool:
        """Whether it ended well, or ran well until the time was over."""
        if self.outcome.attempt.ended_by is EndedBy.TIME_LIMIT:
            return self.has_stepped
        return self.outcome.succeeded

    @property
    def has_stepped(self) -> bool:
        """Whether it has made a step, by what it said or printed."""
        return bool(self.events.steps) or bool(self.outcome.attempt.step)

    def last_lines(self) -> list[str]:
        """Return the end of what it printed, fit for a terminal."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LAST_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except OSError:
            return []
        lines = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").rstrip().split("\n")]
        return [strip_control(line)[:300] for line in lines[-LAST_LINES:] if line]


@dataclass
class Bench:
    """The place where trials are made: a temporary folder, of which only the output of what failed stays."""

    environ: Mapping[str, str]
    cwd: Path
    seconds: float
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="heal-check-")))
    _kept: list[Path] = field(default_factory=list)
    _count: int = 0

    def __enter__(self) -> Self:
        """Begin."""
        become_subreaper()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove everything but the output that was named."""
        for each in self.folder.iterdir():
            if each not in self._kept:
                shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink(missing_ok=True)
        if not self._kept:
            self.folder.rmdir()

    def keep(self, trial: Trial) -> Path:
        """Have the output of a trial stay, and return where."""
        kept = self.folder / "output.log"
        if trial.log.exists():
            shutil.copyfile(trial.log, kept)
            self._kept.append(kept)
        return kept

    def try_out(
        self,
        argv: Sequence[str],
        orders: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Trial:
        """Run a command to its end, or until its time is over; with orders the hook is on its path.

        Raises:
            ConfigError: it cannot be started.
            Interrupted: the user has ended it; nothing of it is left.

        """
        self._count += 1
        folder = self.folder / f"trial-{self._count}"
        work = folder / "work"
        work.mkdir(parents=True)
        events = folder / "events.jsonl"
        full = {**self.environ, **(environ or {}), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        if orders is not None:
            written = folder / "orders.json"
            written.write_text(json.dumps({**orders, "events": str(events), "folder": str(work)}), encoding="utf-8")
            path = [str(HOOK), *([full["PYTHONPATH"]] if full.get("PYTHONPATH") else [])]
            full |= {VARIABLE: str(written), "PYTHONPATH": os.pathsep.join(path), "WANDB_MODE": "disabled"}
        most_s = self.seconds if seconds is None else seconds
        start = Start(
            number=1, argv=list(argv), environ=full, cwd=self.cwd, folder=folder, temporary=(self.folder,), is_shown=False,
            most_s=most_s, is_enough=_enough(orders, events),
        )  # fmt: skip
        with SignalDesk() as desk:
            attempt = Running(start, RunSettings(grace=GRACE_S), desk).run()
            if desk.asked_to_end is not None:
                raise Interrupted(desk.asked_to_end)
        shutil.rmtree(work, ignore_errors=True)
        return Trial(outcome_of(attempt), read_events(events), folder / "output.log", most_s)


def _enough(orders: Mapping[str, object] | None, events: Path) -> Callable[[Progress], bool]:
    """Return what says whether a command that the hook cannot limit has printed enough steps."""
    steps = orders.get("steps") if orders is not None else None
    wanted = max(2, steps) if isinstance(steps, int) else sys.maxsize
    return lambda progress: progress.metric_lines >= wanted and not read_events(events).of("plan")


def python_of(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the Python that a command runs with: itself, the one beside its launcher, or ours."""
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if PurePath(argv[0]).name.startswith("python"):
        return argv[0]
    if program is not None:
        beside = Path(program).parent / "python"
        if beside.exists() and PurePath(program).name in ("torchrun", "accelerate", "trl", "deepspeed", "axolotl"):
            return str(beside)
    return sys.executable

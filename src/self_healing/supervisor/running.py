"""One attempt: a command is started, watched, ended where it must be, and what was seen of it is returned."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import Preempted
from ..diagnosis.text_finding import TextFinding
from ..readers.log_text import Block
from .outcome import Attempt, EndedBy
from .process.child import Child, Ending
from .process.shim import descendants
from .settings import RunSettings
from .signals import ENDING, WARNING, SignalDesk, ToldToEnd
from .watch.kernel import memory_kills, processor_seconds
from .watch.live_text import LiveText, Progress
from .watch.output_log import OutputLog
from .watch.silence import START_UP, TRAINING, Silence
from .watch.stacks import save_stacks

LOOK_S = 0.25
"""How often the text is asked whether all is well."""
LOOK_AT_PROCESSES_S = 2.0
AWAY_S = 5.0
"""How long it may take us to look again; after more we were stopped ourselves, or the machine was."""
STACKS_S = 2.0
"""How long python may take to write where it hangs, before anything else is sent to it."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """What is started, and where what is seen of it goes."""

    number: int
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: Path
    folder: Path
    """Where the output of this attempt is kept."""
    temporary: tuple[Path, ...] = ()
    """Files that were written for it, and are to be gone in the end."""
    changes: tuple[str, ...] = ()
    on_lines: Callable[[Block], None] | None = None
    beats: Callable[[], object] = lambda: None
    """Asked now and then; another answer than before is a sign of life."""
    phase: Callable[[], str | None] = lambda: None
    """What the command says it is doing, where our healer runs inside it."""
    heals_itself: Callable[[], bool] = lambda: False
    """Whether our healer runs inside the command: then what it heals ends nothing."""
    tell: Callable[[str], None] = lambda _text: None
    is_shown: bool = True
    """Whether its output is passed on, besides being kept."""
    most_s: float | None = None
    """How long it may run; then it is ended."""
    is_enough: Callable[[Progress], bool] = lambda _progress: False
    """Asked now and then; where what was printed is enough, it is ended as if its time were over."""


class Running:
    """One attempt while it runs."""

    def __init__(self, start: Start, settings: RunSettings, desk: SignalDesk) -> None:
        self._start = start
        self._settings = settings
        self._desk = desk
        self._text = LiveText(start.on_lines)
        self._log = OutputLog(start.folder)
        self._began_s = time.monotonic()  # what we read before, patterns above all, is no time of the command's
        self._silence = Silence(fixed_s=settings.hang_timeout, began_s=self._began_s)
        self._heard_s = self._began_s
        self._ended_by = EndedBy.ITSELF
        self._because = ""
        self._end_at: float | None = None
        self._kill_at: float | None = None
        self._is_asked = False
        self._warned_by: int | None = None
        self._looked_s = self._began_s
        self._beat: object = None
        self._kills_before = memory_kills()
        streams = [self._text.stream(), self._text.stream()]
        self._child = Child(
            start.argv,
            start.environ,
            start.cwd,
            grace_s=settings.grace,
            watch=lambda at, data: self._take(streams[at], data),
            is_shown=start.is_shown,
        )

    def run(self) -> Attempt:
        """Watch the command to its end."""
        self._desk.on_pause = self._child.pause
        try:
            for path in self._start.temporary:
                self._child.remove_if_we_die(path)
            while not self._child.look():
                self._desk.wait(LOOK_S, self._child.reports)
                for number in self._desk.taken():
                    self._on_signal(number)
                now = time.monotonic()
                self._look_at_text(now)
                self._look_at_processes(now)
                self._keep_time(now)
        finally:
            self._desk.on_pause = lambda _is_paused: None
            ending = self._child.finish(lambda: not self._desk.is_to_end)
            findings = self._text.findings()
            self._log.close()
        for trouble in filter(None, (*map(str, ending.left), self._log.trouble, self._text.trouble)):
            self._start.tell(trouble)
        return self._attempt(ending, findings)

    def _attempt(self, ending: Ending, findings: Sequence[TextFinding]) -> Attempt:
        progress, status = self._text.progress, ending.status
        warned_by = self._warned_by
        if warned_by is not None and status in (Preempted.exit_code, -warned_by):  # it has ended because of the warning
            self._ended_by, self._because = (
                EndedBy.SIGNAL,
                f"the command has ended after {signal.Signals(warned_by).name}",
            )
            self._desk.told_to_end_by(warned_by)
        return Attempt(
            number=self._start.number, status=status, ended_by=self._ended_by, because=self._because, findings=findings,
            is_nan=progress.is_nan, nan_since_s=progress.nan_since_s, step=progress.step, metric_lines=progress.metric_lines,
            seconds=time.monotonic() - self._began_s, heals_itself=self._start.heals_itself(),
            was_killed_for_memory=memory_kills() > self._kills_before, changes=self._start.changes,
            goes_on=next((str(each) for each in ending.left if each.is_out_of_reach), ""),
        )  # fmt: skip

    # -- what the command does -----------------------------------------------------------------------

    def _take(self, feed: Callable[[bytes], None], data: bytes) -> None:
        """Take in what was printed; called by the threads that read it."""
        self._heard_s = time.monotonic()
        self._log.write(data)
        feed(data)

    def _look_at_text(self, now: float) -> None:
        progress = self._text.progress
        if progress.is_nan and self._ended_by is EndedBy.ITSELF and not self._start.heals_itself():
            step = f" at step {progress.step}" if progress.step is not None else ""
            self._end(EndedBy.NAN, f"the loss is NaN{step}, in {progress.nan_lines} lines in a row", now)

    def _look_at_processes(self, now: float) -> None:
        if now - self._looked_s < LOOK_AT_PROCESSES_S:
            return
        away_s, self._looked_s = now - self._looked_s, now
        if away_s > AWAY_S:
            self._heard_s = now
            self._silence.look_away(now)
        if self._child.is_held_up:  # the reader of our output is late, not the command
            self._heard_s = now
        beat = self._start.beats()
        if beat != self._beat:
            self._beat, self._heard_s = beat, now
        if self._heard_s > self._silence.last_heard_s:
            phase = self._start.phase() or (TRAINING if self._text.progress.metric_lines else START_UP)
            self._silence.hear(self._heard_s, phase)
        pids = self._pids()
        self._silence.see_processor(now, processor_seconds(pids))
        why = self._silence.hangs(now) if self._ended_by is EndedBy.ITSELF else None
        if why is not None:
            with suppress(ToldToEnd), self._desk.giving_up():
                self._start.tell(save_stacks(pids, self._start.folder / "stacks.txt"))
            self._child.signal(signal.SIGCONT)
            self._child.signal(signal.SIGABRT)  # python writes its own stacks on it, and ends
            self._end(EndedBy.HANG, why, now + STACKS_S)

    def _pids(self) -> list[int]:
        own = self._child.pid
        return [] if own is None else [own, *descendants(own)]

    # -- what we do ----------------------------------------------------------------------------------

    def _end(self, by: EndedBy, because: str, at: float) -> None:
        self._ended_by, self._because = by, because
        self._start.tell(because)
        self._end_at = at

    def _keep_time(self, now: float) -> None:
        """Do what is due: ask to end, then kill."""
        most_s = self._start.most_s
        if self._ended_by is EndedBy.ITSELF and (
            (most_s is not None and now - self._began_s >= most_s) or self._start.is_enough(self._text.progress)
        ):
            self._end(EndedBy.TIME_LIMIT, f"it was to be ended after {now - self._began_s:.0f} s", now)
        if self._end_at is not None and now >= self._end_at:
            self._end_at, self._kill_at = None, now + self._settings.grace
            self._child.end(self._settings.grace)
        if self._kill_at is not None and now >= self._kill_at:
            self._child.kill()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._child.resize()
            return
        name = signal.Signals(number).name
        if self._is_asked and number == signal.SIGINT:
            self._start.tell("interrupted again: everything is killed now")
            self._child.kill()
            return
        self._child.signal(number)
        if number in ENDING:
            self._ended_by, self._because = EndedBy.SIGNAL, f"heal run was told to end by {name}"
            self._is_asked = True
            self._kill_at = self._kill_at or time.monotonic() + self._settings.grace
            self._start.tell(f"{name}: passed on; what is left in {self._settings.grace:g} s is killed")
        else:
            assert number in WARNING
            self._warned_by = number
            self._start.tell(f"{name}: passed on")

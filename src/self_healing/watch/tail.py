"""Follow the files of a run while it is written: what is new is read once, and nothing else.

Files are opened for each look and closed again, by name: a file that is not there yet, is replaced, cut or gone is then just what
it is. A line that is not finished waits for its end. Nothing is ever written.
"""

from __future__ import annotations

import heapq
import os
import stat
from pathlib import Path

from ..core.heartbeat import read_heartbeats
from ..core.ledger import Entry
from ..core.ledger_lines import decode
from ..core.run_directory import healing_folder, ledger_path, supervisor_ledger_path
from ..core.run_ledgers import AttemptNumbers
from ..readers.log_runs import LogMetrics
from ..readers.log_text import live_blocks
from ..report.clean import Cleaner
from ..report.model import RankFacts, RunStory
from ..report.run_files import attempt_folders, home_of, look_beside, ranks_of

MOST_BYTES = 4 * 2**20
"""What is read of one file in one look: a view that is opened late shows something soon."""
_LONGEST_LINE = 4 * 2**20
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class FileTail:
    """One growing file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_replaced = False
        """The file is another one than at the last look, or was cut: what was read is of the past."""
        self.has_more = False
        self.bytes_read = 0
        self.time_s = 0.0
        """The latest time that a line of it had."""
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._rest = b""
        self._is_too_long = False

    def lines(self) -> list[bytes]:
        """Return the lines that were finished since the last look."""
        self.has_more = False
        try:
            descriptor = os.open(self.path, _FLAGS)
        except OSError:  # not there yet, or not any more
            return []
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return []
            identity = status.st_dev, status.st_ino
            if self._identity not in (None, identity) or status.st_size < self._offset:
                self.is_replaced = True
                self._offset, self._rest, self._is_too_long = 0, b"", False
            self._identity = identity
            data = os.pread(descriptor, MOST_BYTES, self._offset)
        except OSError:
            return []
        finally:
            os.close(descriptor)
        self._offset += len(data)
        self.bytes_read += len(data)
        self.has_more = self._offset < status.st_size and bool(data)
        return self._whole(data)

    def _whole(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines and self._is_too_long:  # the end of a line whose beginning was dropped
            del lines[0]
            self._is_too_long = False
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self._is_too_long = b"", True
        return lines


class RunTail:
    """Follows all ledgers of a run and keeps its story."""

    def __init__(self, run_dir: Path, clean: Cleaner | None = None) -> None:
        self.run_dir = run_dir
        self._clean = clean
        self._begin()

    def _begin(self) -> None:
        self.story = RunStory(self._clean)
        self._tails: dict[int, FileTail] = {}
        """By rank; -1 is the supervisor."""
        self._numbers = AttemptNumbers()
        self._first = 0
        """The rank that tells the story."""
        self._waiting: list[tuple[float, int, Entry, int]] = []
        """Entries that are newer than what another ledger has been read up to."""
        self._count = 0
        self._output: tuple[FileTail, LogMetrics] | None = None
        self._was_ended = False

    @property
    def is_there(self) -> bool:
        """Whether there is anything of a run."""
        return self.story.entries > 0

    @property
    def bytes_read(self) -> int:
        """How many bytes were read of ledgers and output."""
        tails = [*self._tails.values(), *([self._output[0]] if self._output else [])]
        return sum(tail.bytes_read for tail in tails)

    def poll(self) -> bool:
        """Read what is new and say whether there is more to be read at once.

        Raises:
            LedgerError: a ledger is of a version that is not read here.

        """
        self._find()
        until = float("inf")
        for rank, tail in list(self._tails.items()):
            newest = self._read(rank, tail)
            if (
                tail.is_replaced and rank <= self._first
            ):  # another run, or a ledger that was moved away: the story begins anew
                self._begin()
                return True
            if tail.has_more and newest is not None:
                until = min(until, newest)
        while self._waiting and self._waiting[0][0] <= until:
            _, _, entry, rank = heapq.heappop(self._waiting)
            if rank > self._first:
                self.story.take(entry, is_main=False)
                continue
            for numbered in self._numbers.take(entry, is_supervisors=rank < 0):
                self.story.take(numbered)
        has_more = any(tail.has_more for tail in self._tails.values())
        if not has_more:
            self._look_beside()
        return has_more

    def _find(self) -> None:
        """Begin to follow ledgers that have come up since."""
        home = home_of(self.run_dir)
        others = ranks_of(home)
        has_first = ledger_path(home).exists()
        # Without the first rank, which is on another machine or still to come, the first of those here tells the story.
        first = 0 if has_first or not others else others[0]
        if first != self._first:
            if self._tails:
                self._begin()
            self._first = first
        wanted = {-1: supervisor_ledger_path(self.run_dir), 0: ledger_path(home)}
        wanted |= {rank: ledger_path(home, rank) for rank in others}
        for rank, path in wanted.items():
            if rank not in self._tails and path.exists():
                self._tails[rank] = FileTail(path)

    def _read(self, rank: int, tail: FileTail) -> float | None:
        newest: float | None = None
        for line in tail.lines():
            entry = decode(line, tail.path)
            if entry is not None:
                self._count += 1
                newest = tail.time_s = max(tail.time_s, entry.time)  # within a file, its order counts
                heapq.heappush(self._waiting, (tail.time_s, self._count, entry, rank))
        return newest

    def _look_beside(self) -> None:
        """Look at heartbeats, at what is printed where the ledger has no metrics, and after the end at all the rest."""
        story = self.story
        story.outside.name = story.clean.line(self.run_dir.name)
        for beat in read_heartbeats(self.run_dir):
            story.ranks.setdefault(beat.rank, RankFacts(beat.rank)).beat = beat
        if story.entries and (not story.curves or story.outside.curves_from):
            self._read_output()
        if bool(story.ended) is not self._was_ended:
            self._was_ended = bool(story.ended)
            look_beside(self.run_dir, story, with_logs=False)

    def _read_output(self) -> None:
        """Take metrics from what the newest attempt of a supervised command prints."""
        folders = attempt_folders(healing_folder(self.run_dir))
        if not folders:
            return
        path = folders[-1] / "output.log"
        if self._output is None or self._output[0].path != path:
            self._output = FileTail(path), LogMetrics()
        tail, metrics = self._output
        lines = tail.lines()
        if not lines:
            return
        for block in live_blocks([b"\n".join(lines) + b"\n"]):
            for seen in metrics.of(block):
                self.story.take_observed(seen.signal.step, seen.signal.values)
        self.story.outside.curves_from = "what the attempts printed"

"""The append-only record of a run: one JSON object a line, written by a thread of its own, never raising.

Long runs are thinned: the first 200,000 `signal` lines of an attempt are all written; from then on only those
the healer asks to keep and every 10th, from 2,000,000 on every 100th. A `note` line `signals-thinned` says where
that began, and a replay of such a ledger is approximate.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from .ledger_lines import (
    KINDS,
    SCHEMA,
    Entry,
    LedgerReading,
    encode,
    iter_ledger,
    open_for_appending,
    read_ledger,
)
from .run_directory import ledger_path
from .secrets import Masker

__all__ = [
    "CONTINUES",
    "KINDS",
    "PAUSE_S",
    "SCHEMA",
    "Book",
    "Entry",
    "Ledger",
    "LedgerReading",
    "MemoryLedger",
    "UnwrittenBook",
    "iter_ledger",
    "read_ledger",
]

logger = logging.getLogger("self_healing.ledger")

CONTINUES = "continues"
"""Key in the first line of an attempt; False where another run begins in the folder of an earlier one."""
_UNSYNCED = frozenset({"signal", "diagnosis", "note"})
"""The kinds that are written without waiting for the device: they outlive the process, if not the machine."""
PAUSE_S = 1.0
"""How long metrics and diagnoses may wait for company: what a process that is killed has not told of yet."""
_BATCH_LINES = 256
"""About 64 KiB of metrics: as many lines are written without waiting for the pause to end."""

T = TypeVar("T")


class Book(Protocol):
    """Where the healer writes; the body belongs to the book from then on and must not be changed."""

    attempt: int

    def append(
        self,
        kind: str,
        name: str,
        *,
        step: int,
        time_s: float,
        body: Mapping[str, object],
        rank: int | None = None,
        keep: bool = False,
    ) -> Entry:
        """Record an entry and return it; `keep` exempts a signal from thinning, no rank means the book's own."""

    def mask(self, text: str) -> str:
        """Return the text as the book would hold it, secrets masked."""

    def trouble(self) -> str | None:
        """Return once, in words, what keeps the book from being written."""

    def close(self) -> None:
        """Write what is left and end; never raises."""


class UnwrittenBook:
    """A book that is nowhere but in memory: it counts the entries, and whoever derives from it takes them in."""

    def __init__(self, *, rank: int = 0, attempt: int = 1) -> None:
        """Begin with no entries."""
        self.attempt = attempt
        self.rank = rank
        self._count = 0

    def append(
        self,
        kind: str,
        name: str,
        *,
        step: int,
        time_s: float,
        body: Mapping[str, object],
        rank: int | None = None,
        keep: bool = False,  # nothing is thinned here
    ) -> Entry:
        """Make an entry, take it in and return it."""
        self._count += 1
        place = self.rank if rank is None else rank
        entry = Entry(SCHEMA, self._count, self.attempt, time_s, step, place, kind, name, body)
        self.take(entry)
        return entry

    def take(self, entry: Entry) -> None:
        """Keep of an entry what is of interest."""
        raise NotImplementedError

    def mask(self, text: str) -> str:
        """Return the text as it is: nothing leaves memory, or it is masked where it is shown."""
        return text

    def trouble(self) -> str | None:
        """Return None: memory cannot be unwritable."""
        return None

    def close(self) -> None:
        """Do nothing: nothing is open."""


class MemoryLedger(UnwrittenBook):
    """A book in memory that keeps every entry: for replays and tests."""

    def __init__(self, *, rank: int = 0, attempt: int = 1) -> None:
        """Begin with no entries."""
        super().__init__(rank=rank, attempt=attempt)
        self.entries: list[Entry] = []

    def take(self, entry: Entry) -> None:
        """Keep an entry."""
        self.entries.append(entry)


class _Line(NamedTuple):
    """One line ready to be written."""

    kind: str
    data: bytes


class Ledger:
    """A book on disk, `<run dir>/healing/ledger.jsonl`: appending costs microseconds and never touches the disk.

    A thread writes. While the disk refuses, lines wait in memory (the oldest signals are dropped first when that
    gets too much, and counted) and `trouble()` says so once. A forked child's copy records nothing.

    Example:
        >>> ledger = Ledger("runs/a", environ=os.environ)
        >>> ledger.append("note", "hello", step=0, time_s=0.0, body={"text": "first line"}).seq
        1
        >>> ledger.close()
    """

    MOST_LINES: ClassVar[int] = 50_000
    MOST_BYTES: ClassVar[int] = 16 * 2**20
    THINNING: ClassVar[Sequence[tuple[int, int]]] = ((200_000, 10), (2_000_000, 100))
    """From which signal of an attempt on only every how many-th is written; rising."""

    def __init__(
        self,
        where: str | os.PathLike[str],
        *,
        rank: int = 0,
        environ: Mapping[str, str],
        secrets: Iterable[str] = (),
        on_entry: Callable[[Entry], None] | None = None,
    ) -> None:
        """Open the ledger of a run directory, or the file itself where the path ends in `.jsonl`.

        `on_entry` is shown everything but signals, as it is appended and by the thread that appends it: it must neither
        wait nor raise. `secrets` are masked besides those of the environment.

        Raises:
            LedgerError: the file cannot be opened, is a symbolic link, no ledger, or of a newer schema.

        """
        self.rank = rank
        self.path = Path(where) if Path(where).suffix == ".jsonl" else ledger_path(where, rank)
        self._fd, self._seq, last_attempt, is_torn = open_for_appending(self.path)
        self.attempt = last_attempt + 1
        self._masker = Masker(environ, secrets)
        self._on_entry = on_entry
        self._pid = os.getpid()
        self._signals = 0
        # Shared with the writer, guarded by the condition.
        self._wake = threading.Condition()
        self._pending: list[Entry] = []
        self._urgent = self._sync = self._closing = self._abandoned = False
        self._taken = self._settled = self._seq
        self._lost = 0
        self._trouble: str | None = None
        # The writer's own. A torn last line is ended first, so that it stays alone.
        self._lines = [_Line("note", b"\n")] if is_torn else []
        self._sent = 0
        self._dirty = self._wants_sync = self._failing = False
        self._thread = threading.Thread(target=self._run, name="self-healing-ledger", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def append(
        self,
        kind: str,
        name: str,
        *,
        step: int,
        time_s: float,
        body: Mapping[str, object],
        rank: int | None = None,
        keep: bool = False,
    ) -> Entry:
        """Hand an entry to the writer and return it; never raises, never waits for the disk."""
        place = self.rank if rank is None else rank
        if os.getpid() != self._pid:  # A forked child must not even look at the lock: nobody would release it.
            return Entry(SCHEMA, -1, self.attempt, time_s, step, place, kind, name, body)
        with self._wake:
            if self._closing:
                return Entry(SCHEMA, -1, self.attempt, time_s, step, place, kind, name, body)
            is_written = kind != "signal" or self._is_written(step, time_s, place, keep=keep)
            self._seq += 1
            entry = Entry(SCHEMA, self._seq, self.attempt, time_s, step, place, kind, name, body)
            if is_written:
                self._accept(entry)
        if kind != "signal" and self._on_entry is not None:
            self._on_entry(entry)
        return entry

    def mask(self, text: str) -> str:
        """Return the text with secrets masked, as every line of the ledger is."""
        return self._masker.text(text)

    def trouble(self) -> str | None:
        """Return once, in words, what keeps the ledger from being written; again only after it worked in between."""
        trouble = self._trouble
        if trouble is not None:
            self._trouble = None
        return trouble

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything appended so far is on the disk and say whether it is."""
        if os.getpid() != self._pid:
            return False
        with self._wake:
            target = self._pending[-1].seq if self._pending else self._taken
            self._urgent = self._sync = True
            self._wake.notify_all()
            return self._wake.wait_for(lambda: self._settled >= target, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, within the time limit, and end; never raises, and a second call does nothing."""
        if os.getpid() != self._pid or self._closing:
            return
        with self._wake:
            self._closing = self._urgent = self._sync = True
            self._wake.notify_all()
        atexit.unregister(self.close)
        self._on_entry = None  # whoever looked is held on to no longer
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%s: closed before everything could be written", self.path)
        self._abandoned = True

    def _is_written(self, step: int, time_s: float, rank: int, *, keep: bool) -> bool:
        """Count a signal, note where thinning begins, and say whether the signal is written."""
        index = self._signals
        self._signals = index + 1
        if index < self.THINNING[0][0]:
            return True
        every = 1
        for start, interval in self.THINNING:
            if index >= start:
                every = interval
            if index == start:
                self._note("signals-thinned", step, time_s, rank, {"after": start, "every": interval})
        return keep or index % every == 0

    def _note(self, name: str, step: int, time_s: float, rank: int, body: Mapping[str, object]) -> None:
        """Record something about the ledger itself."""
        self._seq += 1
        self._accept(Entry(SCHEMA, self._seq, self.attempt, time_s, step, rank, "note", name, body))

    def _accept(self, entry: Entry) -> None:
        """Queue an entry; the writer is woken for the first one, a full batch, and what must be on disk soon."""
        pending = self._pending
        pending.append(entry)
        count = len(pending)
        if count > self.MOST_LINES:
            self._pending = _without_oldest(pending, max(1, self.MOST_LINES // 10), lambda item: item.kind == "signal")
            self._lost += count - len(self._pending)
        if entry.kind not in _UNSYNCED:
            self._urgent = self._sync = True
        elif entry.kind == "note" or (entry.kind == "signal" and entry.name != "metrics"):
            self._urgent = True  # rare, and a run is told by it: a kill must not take it along
        elif count == _BATCH_LINES:
            self._urgent = True
        elif count > 1:
            return
        self._wake.notify_all()

    # --- the writer thread ---

    def _run(self) -> None:
        """Write batches until closed."""
        try:
            while not self._abandoned and self._write_batch():
                pass
        finally:
            if not self._closing:
                self._trouble = f"{self.path}: the thread that writes the ledger has died"
            os.close(self._fd)

    def _write_batch(self) -> bool:
        """Wait for entries, write them, and say whether there is more to come."""
        with self._wake:
            if not self._failing:
                self._wake.wait_for(lambda: self._pending or self._urgent)
            # The pause in which a batch gathers, and between two tries while the disk refuses.
            self._wake.wait_for(lambda: self._urgent or (self._closing and not self._failing), PAUSE_S)
            batch, self._pending = self._pending, []
            self._wants_sync |= self._sync
            self._urgent = self._sync = False
            taken = self._taken = batch[-1].seq if batch else self._taken
        self._lines.extend(_Line(entry.kind, encode(entry, self._masker)) for entry in batch)
        is_out = self._write_out()
        with self._wake:
            if is_out and not self._dirty:
                self._settled = taken
            if is_out and self._lost:
                last = batch[-1] if batch else Entry(SCHEMA, 0, 0, 0.0, 0, self.rank, "", "", {})
                self._note("lines-lost", last.step, last.time, last.rank, {"lines": self._lost})
                self._lost = 0
            self._wake.notify_all()
            return not (self._closing and is_out and not self._pending)

    def _write_out(self) -> bool:
        """Write all waiting lines, going on exactly where a short write stopped, and say whether that worked."""
        try:
            while self._lines:
                self._dirty = True
                written = os.write(self._fd, b"".join([line.data for line in self._lines])[self._sent :])
                self._cross_off(written)
            if self._wants_sync and self._dirty:
                os.fsync(self._fd)
                self._dirty = False
            self._wants_sync = False
        except OSError as error:
            if not self._failing:
                self._trouble = f"{self.path}: {error.strerror or error}; {len(self._lines)} lines wait in memory"
            self._failing = True
            self._shed()
            return False
        self._failing = False
        return True

    def _cross_off(self, written: int) -> None:
        """Forget the lines that are out, and remember how much of the next one is."""
        done, rest = 0, self._sent + written
        while done < len(self._lines) and rest >= len(self._lines[done].data):
            rest -= len(self._lines[done].data)
            done += 1
        del self._lines[:done]
        self._sent = rest

    def _shed(self) -> None:
        """Drop the oldest lines, signals first, until what waits is within bounds; a half-written line stays."""
        before = len(self._lines)
        begun, rest = (self._lines[:1], self._lines[1:]) if self._sent else ([], self._lines)
        while rest and (len(rest) > self.MOST_LINES or sum(len(line.data) for line in rest) > self.MOST_BYTES):
            rest = _without_oldest(rest, max(1, len(rest) // 10), lambda line: line.kind == "signal")
        self._lines = begun + rest
        with self._wake:
            self._lost += before - len(self._lines)


def _without_oldest(items: list[T], count: int, is_expendable: Callable[[T], bool]) -> list[T]:
    """Return the items less the oldest `count` expendable ones; where there are fewer, older others go too."""
    doomed = [index for index, item in enumerate(items) if is_expendable(item)][:count]
    spared = set(range(len(items))).difference(doomed)
    doomed += sorted(spared)[: count - len(doomed)]
    gone = set(doomed)
    return [item for index, item in enumerate(items) if index not in gone]

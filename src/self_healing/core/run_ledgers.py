"""The ledgers of one run as one: what the training wrote and what its supervisor wrote, by time and attempt.

Each counts for itself. A process that dies before it opens its ledger is an attempt that only the supervisor knows of; one
that is started by hand, or again by torchrun, only the training. Merged, attempts are counted anew over both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from .ledger_lines import Entry, LedgerReading, iter_ledger

BEGAN, OVER = "attempt-began", "attempt-ended"
"""The notes of a supervisor on the two ends of an attempt, ..."""
DECIDED = "decided"
"""... and on what follows it."""


def iter_run(
    own: Path | None, supervisor: Path, reading: LedgerReading | None = None, *, up_to: int | None = None
) -> Iterator[Entry]:
    """Yield the entries of a training and of its supervisor in the order of time; either may not be there.

    `up_to` ends the story with an attempt of the training, by the training's own number, and with what the supervisor had to
    say of it.

    Raises:
        LedgerError: one of them cannot be read, is no ledger, or has a schema this version does not read.

    """
    facts = LedgerReading() if reading is None else reading
    entries = iter_ledger(own, facts) if own is not None else iter(())
    if not supervisor.exists():
        yield from (entry for entry in entries if up_to is None or entry.attempt <= up_to)
        return
    theirs = LedgerReading()
    merged = heapq.merge(
        ((entry, False) for entry in entries),
        ((entry, True) for entry in iter_ledger(supervisor, theirs)),
        key=lambda item: item[0].time,
    )
    yield from _numbered(merged, up_to)
    facts.torn += theirs.torn
    facts.lost += theirs.lost


def iter_last_job(supervisor: Path, reading: LedgerReading | None = None) -> Iterator[Entry]:
    """Yield what a supervisor wrote of its last job, where the run directory was used for several.

    Raises:
        LedgerError: it cannot be read, is no ledger, or has a schema this version does not read.

    """
    first = 0
    for at, entry in enumerate(iter_ledger(supervisor)):
        if entry.kind == "note" and entry.name == BEGAN and entry.body.get("attempt") == 1:
            first = at
    of_job = islice(iter_ledger(supervisor, LedgerReading() if reading is None else reading), first, None)
    yield from _numbered(((entry, True) for entry in of_job), None)


def _numbered(merged: Iterator[tuple[Entry, bool]], up_to: int | None) -> Iterator[Entry]:
    """Yield the entries with the attempts of both counted as one."""
    numbers = AttemptNumbers()
    for entry, is_supervisors in merged:
        if not is_supervisors and up_to is not None and entry.attempt > up_to:
            return
        yield from numbers.take(entry, is_supervisors=is_supervisors)
    yield from numbers.rest()


class AttemptNumbers:
    """Counts the attempts of a training and of its supervisor as one, entry by entry in the order of time."""

    def __init__(self) -> None:
        self._number = self._of_training = 0
        self._is_announced = False
        self._numbers: dict[int, int] = {}
        self._held: list[Entry] = []
        """The beginning of an attempt: not told before something else of it is."""

    def take(self, entry: Entry, *, is_supervisors: bool) -> list[Entry]:
        """Return what there is to tell with this entry, numbered."""
        if is_supervisors:
            if entry.kind == "note" and entry.name == BEGAN:
                self._number, self._is_announced = self._number + 1, True
                before, self._held = self._held, [replace(entry, attempt=self._number)]
                return before
            self._is_announced = self._is_announced and not (entry.kind == "note" and entry.name == OVER)
            numbered = replace(entry, attempt=max(1, self._number))
        else:
            if entry.attempt != self._of_training:
                self._of_training = entry.attempt
                self._number = self._number if self._is_announced else max(self._number + 1, self._of_training)
                self._numbers[self._of_training], self._is_announced = self._number, False
            numbered = _renumbered(entry, self._number, self._numbers)
        return [*self.rest(), numbered]

    def rest(self) -> list[Entry]:
        """Return the beginning of an attempt that nothing else was told of."""
        held, self._held = self._held, []
        return held


def _renumbered(entry: Entry, number: int, numbers: dict[int, int]) -> Entry:
    """Return an entry of the training with the number of its attempt, also where it speaks of another one."""
    of = entry.body.get("of")
    if entry.kind == "note" and entry.name == "killed" and isinstance(of, int):
        return replace(entry, attempt=number, body={**entry.body, "of": numbers.get(of, of)})
    return replace(entry, attempt=number)

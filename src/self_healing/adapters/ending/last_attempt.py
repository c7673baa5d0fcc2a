"""What the ledger says of the attempt before this one: how it ended, and which run it belonged to."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...core.ledger import CONTINUES, iter_ledger
from ...core.notes import ENDED, SAVED
from ...snapshots.manifest import step_of
from ...snapshots.resume import written_s
from ..run.data_facts import fact_names

KILLED = "killed"
LESSONS = "memory-lessons"
"""The note in a ledger of what batches need from now on."""
FAILED = frozenset({"exception", "unrecoverable"})


@dataclass(slots=True)
class LastAttempt:
    """The newest attempt in a ledger."""

    number: int = 0
    exit_reason: str = KILLED
    """As the attempt wrote it, `killed` where it had no time to write anything."""
    last_step: int = 0
    last_s: float = 0.0
    """When it last wrote something."""
    has_trained: bool = False
    run_began_s: float = 0.0
    """When the first attempt of the same run began; what is older in the folder belongs to another one, unless it is known."""
    checkpoints: frozenset[str] = frozenset()
    """The names of the checkpoints that the run has written: clocks may go back, and those of disks go otherwise."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What was known of the run when it was first entered."""
    batch_size: int | None = None
    """Rows of a micro-batch at its end, which may be half of what its user has asked for."""
    lessons: list[dict[str, object]] = field(default_factory=list)
    """What its batches needed at its end, where memory has run out."""
    before: LastAttempt | None = None
    """The attempt before it, of the same run."""

    @property
    def halvings(self) -> int:
        """How often the batch of its user was halved at its end."""
        asked = self.facts.get("batch_size")
        if not isinstance(asked, int) or not self.batch_size or asked % self.batch_size:
            return 0
        times = (asked // self.batch_size).bit_length() - 1
        return times if self.batch_size << times == asked else 0

    @property
    def was_killed(self) -> bool:
        """Whether the process ended without a word."""
        return self.exit_reason == KILLED

    @property
    def was_cut_short(self) -> bool:
        """Whether nobody wanted the run to end: it was killed, or its machine was taken away from it.

        A signal from the keyboard is a person's decision, and an exception is for a person to look at.
        """
        return self.was_killed or (self.exit_reason.startswith("sig") and self.exit_reason != "sigint")

    def why_not_its(self, folder: Path) -> str | None:
        """Say why a checkpoint is none that the run has written; None where it is one, or may be."""
        is_its = folder.name in self.checkpoints or written_s(folder) >= self.run_began_s
        return None if is_its else "it is older than this run"


def last_attempt(ledger: Path) -> LastAttempt | None:
    """Return what a ledger says of its newest attempt; None where there is none."""
    try:
        status = ledger.stat()
    except OSError:
        return None
    return _read(ledger, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1)
def _read(ledger: Path, _size: int, _changed_ns: int) -> LastAttempt | None:
    """Read a ledger once for all who ask; it may be long."""
    last: LastAttempt | None = None
    knows_facts = False
    for entry in iter_ledger(ledger):
        if last is None or entry.attempt != last.number:
            began_s, facts = (entry.time, {}) if last is None else (last.run_began_s, last.facts)
            size = None if last is None else last.batch_size
            lessons = [] if last is None else last.lessons
            known: frozenset[str] = frozenset() if last is None else last.checkpoints
            last = LastAttempt(
                entry.attempt, run_began_s=began_s, checkpoints=known, facts=facts, batch_size=size, lessons=lessons,
                before=that_tells(last),
            )  # fmt: skip
            knows_facts = False
        last.last_s = max(last.last_s, entry.time)
        if entry.kind == "config" and entry.body.get(CONTINUES) is False:
            last.run_began_s, last.facts, last.batch_size, last.before = entry.time, {}, None, None
            last.lessons, last.checkpoints = [], frozenset()
        if entry.kind == "note" and entry.name == LESSONS:
            told = entry.body.get("lessons")
            last.lessons = [dict(lesson) for lesson in told] if isinstance(told, list) else []
        if entry.kind == "note" and entry.name == ENDED:
            last.exit_reason = str(entry.body.get("exit_reason", KILLED))
        if entry.name == "snapshot-taken" or (entry.kind == "note" and entry.name == SAVED):
            folder = Path(str(entry.body.get("key", "")))
            last.checkpoints |= {folder.name} if step_of(folder) is not None else frozenset()
        if entry.kind == "signal":
            last.last_step = max(last.last_step, entry.step)
            last.has_trained = last.has_trained or entry.name == "metrics"
            said = entry.body.get("facts")
            # The first of an attempt are its user's: later ones may be what healing has made of them.
            if isinstance(said, Mapping) and not knows_facts and fact_names() & said.keys():
                knows_facts, last.facts = True, {name: said[name] for name in fact_names() & said.keys()}
            if isinstance(said, Mapping) and isinstance(said.get("batch_size"), int):
                last.batch_size = int(said["batch_size"])
    return last


def that_tells(last: LastAttempt | None) -> LastAttempt | None:
    """Return an attempt, or the one before where it has failed before its first step: that says nothing of the run."""
    if last is None or last.before is None or last.has_trained or last.exit_reason not in FAILED:
        return last
    return last.before

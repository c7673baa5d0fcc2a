"""Manifests written beside the training: hashing takes seconds for large checkpoints, and nobody waits for it.

The thread is started when there is something to do and ends when all is done. It is no daemon, so a process that
ends in an orderly way waits for it. One that is killed leaves a folder without a manifest, which is unverified and
still usable; so that a folder is sick is written down at once, by whoever says it, and again until it could be.
What a disk refuses is tried again as a folder is that does not come to rest, and told where it has failed to the last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .manifest import FolderChangingError, ManifestError, describe, lift, promote, withdraw, write_manifest
from .verdicts import StateVerdict

logger = logging.getLogger("self_healing.snapshots")

MOST_WAITING = 8
"""Folders that may wait to be hashed; where more come, saving is faster than reading and the oldest is left out."""

TRIES = 5
PAUSE_S = 0.5


@dataclass(slots=True)
class _Job:
    step: int | None
    verdict: StateVerdict
    is_hashed: bool
    """False where only the verdict of a manifest changes."""
    is_void: bool = False
    """The folder is written over: what is read of it while this is done is of no checkpoint."""
    lifts: StateVerdict | None = None
    """The mark of a sick one that the verdict takes the place of; None where none may be."""
    is_last_try: bool = False


class ManifestWriter:
    """Writes and promotes the manifests of checkpoint folders, one after another, on a thread of its own."""

    def __init__(
        self, tell: Callable[[str], None] = logger.warning, is_complete: Callable[[Path], bool] = lambda _folder: True
    ) -> None:
        self._tell = tell
        self._is_complete = is_complete
        """Whether all who write into a folder are done; they are not waited for longer than for one that changes."""
        self._waiting: dict[Path, _Job] = {}
        self._at_work: tuple[Path, _Job] | None = None
        self._changed = threading.Condition()
        self._placing = threading.RLock()
        self._thread: threading.Thread | None = None
        self._sick: dict[Path, StateVerdict] = {}
        """What is known to be sick, whatever was thought of it when its hashing began."""
        self._unmarked: set[Path] = set()
        """Those of them whose mark could not be written."""

    def request(self, folder: Path, verdict: StateVerdict, *, step: int | None = None) -> None:
        """Have a folder that is complete hashed and its manifest written.

        A manifest of an earlier content is removed at once, not before: while a folder is being written over, the old
        manifest keeps readers from taking the mixture for a checkpoint. A sick one is marked at once, too.
        """
        self.is_written_over(folder)
        if verdict.is_sick:
            self._mark(folder, verdict)
        else:
            withdraw(folder)
        with self._changed:
            self._waiting[folder] = _Job(step, verdict, is_hashed=True)
            hashed = [path for path, job in self._waiting.items() if job.is_hashed]
            if len(hashed) > MOST_WAITING:
                oldest = self._waiting[hashed[0]]
                oldest.is_hashed = False
                self._tell(f"{hashed[0].name}: not hashed, for checkpoints are written faster than they can be read")
            self._begin()

    def is_written_over(self, folder: Path) -> None:
        """Do no more of what was to be done for a folder: what it was for is there no longer."""
        with self._changed:
            self._waiting.pop(folder, None)
            if self._at_work is not None and self._at_work[0] == folder:
                self._at_work[1].is_void = True
        self._sick.pop(folder, None)
        self._unmarked.discard(folder)

    def promote(self, folder: Path, verdict: StateVerdict) -> None:
        """Have the verdict in a folder's manifest changed: to sick at once, else after whatever is to be done for it."""
        if verdict.is_sick:
            self._mark(folder, verdict)
            return
        with self._changed:
            self._job_for(folder, verdict)
            self._begin()

    def lift(self, folder: Path, was: StateVerdict, verdict: StateVerdict) -> None:
        """Have the mark of a folder taken back that has turned out not to be sick.

        It is on disk until another verdict takes its place: a process that is killed before leaves it, which is the safe side.
        """
        with self._changed:
            self._sick.pop(folder, None)
            self._unmarked.discard(folder)
            self._job_for(folder, verdict).lifts = was
            self._begin()

    def _job_for(self, folder: Path, verdict: StateVerdict) -> _Job:
        """Return what waits to be done for a folder, with this as its verdict."""
        job = self._waiting.setdefault(folder, _Job(None, verdict, is_hashed=False))
        job.verdict = verdict
        return job

    def _mark(self, folder: Path, verdict: StateVerdict) -> None:
        """Write down that a folder is sick, here and now: a process that is killed must not leave it for a sound one."""
        self._sick[folder] = verdict
        self._unmarked.add(folder)
        self._mark_what_is_not()

    def _mark_what_is_not(self, *, is_last_try: bool = False) -> None:
        for folder in tuple(self._unmarked):
            try:
                with self._placing:
                    promote(folder, self._sick[folder])
            except (FolderChangingError, ManifestError) as error:  # it is gone, or nobody can take it for a sound one
                logger.info("%s: no mark: %s", folder, error)
            except OSError as error:
                then = "nothing on disk says so" if is_last_try else "it is tried again"
                self._tell(f"{folder.name} is sick, which could not be written down: {error}; {then}")
                continue
            self._unmarked.discard(folder)

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until all is written; say whether it is."""
        self._mark_what_is_not(is_last_try=True)
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout_s) and not self._unmarked

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Put nothing in place inside the block: for saves, which delete old folders by their modification time."""
        with self._placing:
            yield

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="healing-manifests", daemon=False)
            self._thread.start()

    def _work(self) -> None:
        is_done = False
        try:
            while (found := self._next()) is not None:
                self._do(*found)
            is_done = True
        finally:
            if not is_done:  # a bug of ours ends the thread; whoever waits for it must not wait for ever
                with self._changed:
                    self._waiting.clear()
                    self._end()

    def _next(self) -> tuple[Path, _Job] | None:
        """Return what is to be done; where there is nothing the thread is over, for `_begin` too."""
        with self._changed:
            if not self._waiting:
                self._end()
                return None
            folder = next(iter(self._waiting))
            self._at_work = folder, self._waiting.pop(folder)
            return self._at_work

    def _end(self) -> None:
        self._thread = self._at_work = None
        self._changed.notify_all()

    def _do(self, folder: Path, job: _Job) -> None:
        failed = self._tried(folder, job, self._hash) if job.is_hashed else None
        if isinstance(failed, OSError):
            self._tell(f"{folder.name}: it cannot be hashed, or its manifest not be written: {failed}")
        elif failed is not None:
            logger.info("%s: not hashed: %s", folder, failed)
        if job.is_hashed and failed is None:
            return
        failed = self._tried(folder, job, self._judge)
        if isinstance(failed, FolderChangingError):
            logger.info("%s: no manifest: %s", folder, failed)
        elif failed is not None:
            self._tell(f"{folder.name}: its manifest could not be written: {failed}")

    def _tried(self, folder: Path, job: _Job, write: Callable[[Path, _Job], None]) -> Exception | None:
        """Write until the folder has come to rest and the disk takes it; return what has kept it from that to the last."""
        for attempt in range(TRIES):
            job.is_last_try = attempt == TRIES - 1
            try:
                write(folder, job)
            except ManifestError as error:  # which stays so
                return error
            except (FolderChangingError, OSError) as error:
                if job.is_void or job.is_last_try or not folder.is_dir():
                    return error
                time.sleep(PAUSE_S)
            else:
                break
        return None

    def _judge(self, folder: Path, job: _Job) -> None:
        with self._placing:
            if job.is_void:
                return
            if job.lifts is not None and folder not in self._sick:  # else it was found sick once more
                lift(folder, job.lifts, job.verdict)
            else:
                promote(folder, job.verdict)

    def _hash(self, folder: Path, job: _Job) -> None:
        if not job.is_last_try and not self._is_complete(folder):
            raise FolderChangingError("somebody has not written his part of it yet")
        manifest = describe(folder, job.verdict, step=job.step)
        with self._placing:
            if not job.is_void:
                write_manifest(folder, replace(manifest, verdict=self._sick.get(folder, manifest.verdict)))

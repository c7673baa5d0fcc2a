"""Manifests written beside the training: hashing takes seconds for large checkpoints, and nobody waits for it.

The thread is started when there is something to do and ends when all is done. It is no daemon, so a process that
ends in an orderly way waits for it. One that is killed leaves a folder without a manifest, which is unverified and
still usable; so that a folder is sick, or that the run has gone on from before it, is written down at once, by whoever
says it. What a disk refuses is tried again a few times, as a folder is that does not come to rest, and told; whoever
trains has all that is still owed tried once more, now and then and at the end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .file_marks import FolderChangingError
from .manifest import Manifest, ManifestError, describe, keep_off, lift, promote, withdraw, write_manifest
from .verdicts import StateVerdict

logger = logging.getLogger("self_healing.snapshots")

MOST_WAITING = 8
"""Folders that may wait to be hashed; where more come, saving is faster than reading and the oldest is left out."""

TRIES = 5
PAUSE_S = 0.5
AGAIN_S = 2.0
"""How long what a disk has refused is left alone: each try waits for it."""


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
    described: Manifest | None = None
    """What was hashed already: a disk that takes no manifest need not be read again for it."""
    was_told: bool = False
    """Whether it was said that the disk has refused it."""


@dataclass(slots=True)
class _Mark:
    """What keeps readers off a folder, and has to be on disk before anything else is done."""

    sick: StateVerdict | None = None
    undone: str = ""
    was_told: bool = False
    """Whether it was said that the disk has refused it."""


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
        self._marks: dict[Path, _Mark] = {}
        """What is known to be sick or undone, whatever was thought of it when its hashing began."""
        self._unmarked: set[Path] = set()
        """Those of them whose mark could not be written."""
        self._ours: dict[Path, StateVerdict] = {}
        """Marks of sick ones that we have written, and may write over."""
        self._owed: dict[Path, _Job] = {}
        """What the disk has refused to the last."""
        self._tried_s = -AGAIN_S

    def request(self, folder: Path, verdict: StateVerdict, *, step: int | None = None) -> None:
        """Have a folder that is complete hashed and its manifest written.

        A manifest of an earlier content is removed at once, not before: while a folder is being written over, the old
        manifest keeps readers from taking the mixture for a checkpoint. A sick one is marked at once, too.
        """
        self.is_written_over(folder)
        if verdict.is_sick:
            self._mark_sick(folder, verdict)
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
            self._owed.pop(folder, None)
        for known in (self._marks, self._ours):
            known.pop(folder, None)
        self._unmarked.discard(folder)

    def promote(self, folder: Path, verdict: StateVerdict) -> None:
        """Have the verdict in a folder's manifest changed: to sick at once, else after whatever is to be done for it."""
        if verdict.is_sick:
            self._mark_sick(folder, verdict)
            return
        with self._changed:
            self._job_for(folder, verdict)
            self._begin()

    def lift(self, folder: Path, was: StateVerdict, verdict: StateVerdict) -> None:
        """Have the mark of a folder taken back that has turned out not to be sick.

        It is on disk until another verdict takes its place: a process that is killed before leaves it, which is the safe side.
        """
        with self._changed:
            mark = self._marks.get(folder)
            if mark is not None:
                mark.sick = None
            if mark is None or not mark.undone:
                self._unmarked.discard(folder)
            self._job_for(folder, verdict).lifts = was
            self._begin()

    def undone(self, folder: Path, because: str) -> None:
        """Write down, here and now, that the run has gone on from before a folder's state."""
        self._marks.setdefault(folder, _Mark()).undone = because
        self._mark(folder)

    def try_again(self) -> None:
        """Try once more, now and then, what the disk has refused."""
        if not (self._unmarked or self._owed) or time.monotonic() - self._tried_s < AGAIN_S:
            return
        self._mark_what_is_not()
        self._begin_with_what_is_owed()

    def _begin_with_what_is_owed(self) -> None:
        self._tried_s = time.monotonic()
        with self._changed:
            owed, self._owed = self._owed, {}
            for folder, job in owed.items():
                self._waiting.setdefault(folder, job)
            if self._waiting:
                self._begin()

    def _job_for(self, folder: Path, verdict: StateVerdict) -> _Job:
        """Return what waits to be done for a folder, with this as its verdict."""
        owed = self._owed.pop(folder, None)
        job = self._waiting.setdefault(folder, owed or _Job(None, verdict, is_hashed=False))
        job.verdict = verdict
        return job

    def _mark_sick(self, folder: Path, verdict: StateVerdict) -> None:
        """Write down that a folder is sick, here and now: a process that is killed must not leave it for a sound one."""
        self._marks.setdefault(folder, _Mark()).sick = verdict
        self._mark(folder)

    def _mark(self, folder: Path) -> None:
        self._unmarked.add(folder)
        self._mark_what_is_not()

    def _mark_what_is_not(self, *, is_last_try: bool = False) -> None:
        for folder in tuple(self._unmarked):
            mark = self._marks[folder]
            try:
                with self._placing:
                    keep_off(folder, sick=mark.sick, over=self._ours.get(folder), undone=mark.undone)
                    if mark.sick is not None:
                        self._ours[folder] = mark.sick
            except (FolderChangingError, ManifestError) as error:  # it is gone, or nobody can take it for a sound one
                logger.info("%s: no mark: %s", folder, error)
            except OSError as error:
                what = "is sick" if mark.sick is not None else "is of steps that are undone"
                then = "nothing on disk says so" if is_last_try else "it is tried again"
                if is_last_try or not mark.was_told:
                    self._tell(f"{folder.name} {what}, which could not be written down: {error}; {then}")
                mark.was_told = True
                continue
            self._unmarked.discard(folder)

    @property
    def undone_ones(self) -> set[Path]:
        """The folders that the run has gone on from before."""
        return {folder for folder, mark in self._marks.items() if mark.undone}

    @property
    def takes_marks_back(self) -> bool:
        """Whether a folder is about to be no longer marked sick."""
        with self._changed:
            jobs = [*self._waiting.values(), *self._owed.values(), *([self._at_work[1]] if self._at_work else [])]
        return any(job.lifts is not None for job in jobs)

    def finish(self, timeout_s: float | None = None) -> bool:
        """Wait until all is written, or refused to the last; say whether that is so, and every mark is on disk."""
        self._mark_what_is_not(is_last_try=True)
        self._begin_with_what_is_owed()
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
            self._refused(folder, job, f"it cannot be hashed, or its manifest not be written: {failed}")
        elif failed is not None:
            logger.info("%s: not hashed: %s", folder, failed)
        if job.is_hashed and failed is None:
            return
        failed = self._tried(folder, job, self._judge)
        if isinstance(failed, OSError):
            self._refused(folder, job, f"its manifest could not be written: {failed}")
        elif isinstance(failed, FolderChangingError):
            logger.info("%s: no manifest: %s", folder, failed)
        elif failed is not None:
            self._tell(f"{folder.name}: its manifest could not be written: {failed}")

    def _refused(self, folder: Path, job: _Job, told: str) -> None:
        """Keep what the disk has refused, to be tried again."""
        with self._changed:
            is_read = not job.is_hashed or job.described is not None  # what cannot be read is not read again and again
            if is_read and not job.is_void and folder not in self._waiting and folder.is_dir():
                self._owed[folder] = job
        if not job.was_told:
            stays = "" if job.lifts is None else f"; until it can be, it stays marked sick ({job.lifts.because})"
            self._tell(f"{folder.name}: {told}{stays}")
        job.was_told = True

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
            if job.lifts is None or self._is_sick(folder):  # which was found once more
                promote(folder, job.verdict)
            elif lift(folder, job.lifts, job.verdict):
                self._ours.pop(folder, None)

    def _hash(self, folder: Path, job: _Job) -> None:
        if not job.is_last_try and not self._is_complete(folder):
            raise FolderChangingError("somebody has not written his part of it yet")
        manifest = job.described = job.described or describe(folder, job.verdict, step=job.step)
        with self._placing:
            if job.is_void:
                return
            mark = self._marks.get(folder, _Mark())
            try:
                write_manifest(folder, replace(manifest, verdict=mark.sick or job.verdict, undone=mark.undone))
            except FolderChangingError:
                job.described = None
                raise

    def _is_sick(self, folder: Path) -> bool:
        mark = self._marks.get(folder)
        return mark is not None and mark.sick is not None

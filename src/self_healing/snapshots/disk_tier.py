"""The checkpoints of a running training: each gets a manifest, and the verdicts in them follow what is observed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .manifest import ManifestError, manifest_of_now, mark, promote, read_manifest, step_of
from .manifest_writer import ManifestWriter
from .resume import checkpoints_in
from .verdicts import (
    HALF_WRITTEN,
    OpenIncident,
    SavedState,
    StateVerdict,
    Tier,
    after_incident,
    after_observation,
    after_return,
    after_trouble,
    verdict_when_taken,
)


class DiskTier:
    """Follows the checkpoint folders of one run; nothing here waits for the disk, but for a mark that one is sick."""

    def __init__(self, writer: ManifestWriter | None = None) -> None:
        self.writer = writer or ManifestWriter()
        self.states: tuple[SavedState, ...] = ()
        self._open: OpenIncident | None = None

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Go around a save: it deletes old folders, and nothing may be put into one meanwhile."""
        with self.writer.standing_still():
            yield

    def judged(self, step: int, *, is_finite: bool | None) -> StateVerdict:
        """Judge the state of this moment before it is written; None says that nobody looked at its weights."""
        norms = None if is_finite is None else {"weights": 1.0 if is_finite else math.nan}
        return verdict_when_taken(step, norms=norms, open_incident=self._open)

    def least_wanted_go_first(self) -> None:
        """Have whoever deletes the oldest checkpoints, by the times of their folders, begin with those that are sick or undone."""
        unwanted = {Path(state.key) for state in self.states if state.verdict.is_sick} | self.writer.undone_ones
        for folder in unwanted:
            with suppress(OSError):  # it is gone, or its times are not ours to change
                others_s = [each.stat().st_mtime for each in checkpoints_in(folder.parent) if each not in unwanted]
                if folder.stat().st_mtime >= (oldest_s := min(others_s, default=math.inf)):
                    os.utime(folder, (oldest_s - 1, oldest_s - 1))

    def marked_first(self, folder: Path, verdict: StateVerdict, *, writes_over: bool = False) -> None:
        """Mark the folder of a sick state before anything else is in it.

        One that is there holds other weights yet. Where its files are written over one by one, it has a mark meanwhile, if
        its manifest does not tell the mixture from a checkpoint; and it counts as new for whoever deletes the oldest.

        Raises:
            OSError: it cannot be written.

        """
        if not folder.exists():
            if verdict.is_sick:
                folder.mkdir(parents=True)
                promote(folder, verdict)
        elif writes_over:
            self.writer.is_written_over(folder)
            if verdict.is_sick or not _is_told_of(folder):
                mark(folder, verdict if verdict.is_sick else HALF_WRITTEN)
            with suppress(OSError):  # the folder is somebody else's
                os.utime(folder)

    def saved(self, folder: Path, verdict: StateVerdict, *, has_manifest: bool = False) -> None:
        """Take note of a checkpoint that is complete; one that `has_manifest`, because it got its name with it, is only followed."""
        step = step_of(folder) or 0
        state = SavedState(key=str(folder), step=step, tier=Tier.DISK, verdict=verdict)
        # What has been deleted needs no verdict, and what was written over has a new one.
        self.states = (*(s for s in self.states if s.key != state.key and Path(s.key).is_dir()), state)
        if not has_manifest:
            self.writer.request(folder, verdict, step=step)

    def resumed(self, folder: Path) -> None:
        """Go on judging a checkpoint of an earlier process: the healthy steps to come speak for it."""
        try:
            manifest = manifest_of_now(folder)
        except ManifestError:
            return
        step = step_of(folder)
        if manifest is None or step is None:
            return
        self.states = after_return((s for s in self.states if s.key != str(folder)), step)
        self.states += (SavedState(key=str(folder), step=step, tier=Tier.DISK, verdict=manifest.verdict),)

    def observed(self, step: int, *, is_healthy: bool) -> None:
        """Count an observation."""
        self.writer.try_again()
        self._become(after_observation(self.states, step, healthy=is_healthy))

    def incident_opened(self, name: str, onset: int) -> None:
        """Mark what holds harmed steps; what is saved until the incident is over is sick too."""
        incident = OpenIncident(name, onset)
        if self._open is None or onset < self._open.onset:
            self._open = incident
        self._become(after_incident(self.states, incident))

    def incidents_over(self, *, by_themselves: bool = False) -> None:
        """Trust new checkpoints again: the run has recovered, or has returned to before the trouble.

        Where all of it was over by itself, those that were sick for it alone are trusted again, too.
        """
        self._open = None
        if any(state.verdict.but_for_it is not None for state in self.states):
            self._become(after_trouble(self.states, was_harmless=by_themselves))

    def returned(self, to_step: int, undone: Iterable[Path] = ()) -> None:
        """Forget what is no longer in the run's past; what is sick stays so, and the other folders say that they are undone."""
        sick = {state.key for state in self.states if state.verdict.is_sick}
        for folder in undone:
            if str(folder) not in sick:
                self.writer.undone(folder, f"the run has returned from it to step {to_step}")
        self.states = after_trouble(after_return(self.states, to_step), was_harmless=False)
        self._open = None

    def close(self, timeout_s: float | None = None) -> bool:
        """Wait until every manifest is written; say whether it is."""
        return self.writer.finish(timeout_s)

    def _become(self, states: tuple[SavedState, ...]) -> None:
        for old, new in zip(self.states, states, strict=True):
            if old.verdict.is_sick and not new.verdict.is_sick:
                self.writer.lift(Path(new.key), old.verdict, new.verdict)
            elif new.verdict != old.verdict:
                self.writer.promote(Path(new.key), new.verdict)
        self.states = states


def _is_told_of(folder: Path) -> bool:
    """Say whether a manifest tells files that were written over from those that it lists; one that nobody can read does."""
    try:
        manifest = read_manifest(folder)
        return manifest is not None and bool(manifest.files)
    except ManifestError:
        return True

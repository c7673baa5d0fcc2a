"""Checkpoint folders of a Hugging Face Trainer: which of them could be resumed from, and which are of this training."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...snapshots.manifest import STATE, ManifestError, manifest_of_now, step_of
from ...snapshots.resume import checkpoints_in, choose, written_s

NOT_OURS = "it was there when this training began, which does not go on from it"
KNOWN_SICK = "this training knows it to be sick"


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One `checkpoint-N` folder."""

    path: Path
    step: int


class RunCheckpoints:
    """Tells the checkpoints of one training from what others have left in the same folder.

    No clock is asked: what lay there when the training began is another run's, unless this one goes on from it.
    """

    def __init__(self, output_dir: str | Path) -> None:
        self._output_dir = Path(output_dir)
        try:
            there = checkpoints_in(output_dir)
        except OSError:  # whoever looks for a checkpoint is told so
            there = []
        self._found = {folder.name: state_mark(folder) for folder in there}
        self._past: frozenset[str] = frozenset()
        self.reported: set[Path] = set()
        """Those that the core knows as states to return to."""

    def goes_on_from(self, folder: Path, *, since_s: float = 0.0) -> None:
        """Count a checkpoint that is resumed from, and those that it may have come from: of earlier steps, and no newer.

        Args:
            folder: It, or a copy of it elsewhere.
            since_s: When the run began that it belongs to, where that is known.

        """
        own = self._output_dir / folder.name
        if not _is_the_same(own, folder):
            return
        self._past = frozenset(each.name for each in self._up_to(own, since_s) if _is_no_newer(each, own))

    def goes_on_at(self, step: int, *, since_s: float = 0.0) -> None:
        """Count what was written up to a step whose state is taken over from memory."""
        self._past = frozenset(each.name for each in self._up_to(self._output_dir / f"checkpoint-{step}", since_s))

    def past(self) -> Iterator[Path]:
        """Yield the folders from before this training that count, as far as they are there."""
        return (folder for name in sorted(self._past) if (folder := self._output_dir / name).is_dir())

    def after(self, step: int) -> list[Path]:
        """Return the folders of this training, and of what it goes on from, that hold more than so many steps."""
        try:
            there = checkpoints_in(self._output_dir)
        except OSError:  # nobody can read them then
            return []
        return [folder for folder in there if (step_of(folder) or 0) > step and self.why_not(folder) is None]

    def why_not(self, folder: Path) -> str | None:
        """Say why a folder is none of this training's; None where it is."""
        name = folder.name
        is_old = name in self._found and name not in self._past and state_mark(folder) == self._found[name]
        return NOT_OURS if is_old else None

    def newest_usable(
        self, before_step: int | None, *, thorough: bool = False
    ) -> tuple[CheckpointFolder | None, list[str]]:
        """Return the newest usable checkpoint of this training, see below."""
        return newest_usable(self._output_dir, before_step, thorough=thorough, own=self)

    def newest_sound(self, before_step: int, *, model_only: bool, sick: Collection[str]) -> Path | None:
        """Return the newest checkpoint of this training from before a step that a person can use; None where there is none.

        Args:
            before_step: It is from before this step.
            model_only: The run saves the model only, so that no more is asked of it.
            sick: Folders, by name, that are known to be sick, whatever the disk says: it may have refused the mark.

        """

        def why_not(folder: Path) -> str | None:
            return KNOWN_SICK if folder.name in sick else self.why_not(folder)

        return choose(self._output_dir, before_step, thorough=False, model_only=model_only, why_not=why_not).path

    def _up_to(self, newest: Path, since_s: float) -> Iterator[Path]:
        for name in self._found:
            folder = self._output_dir / name
            if (step_of(folder) or 0) <= (step_of(newest) or 0) and (folder == newest or written_s(folder) >= since_s):
                yield folder


def newest_usable(
    output_dir: str | Path, before_step: int | None, *, thorough: bool = False, own: RunCheckpoints | None = None
) -> tuple[CheckpointFolder | None, list[str]]:
    """Return the newest usable checkpoint from before a step, and what was wrong with those passed over.

    Without `thorough` only sizes and structure are looked at, which costs nothing on the training thread; whoever
    goes on from what is returned wants its checksums compared too. With `own` others' are passed over.
    """
    chosen = choose(output_dir, before_step, thorough=thorough, why_not=None if own is None else own.why_not)
    told = [str(passed) for passed in chosen.passed_over]
    if chosen.path is None or chosen.step is None:
        return None, told
    return CheckpointFolder(chosen.path, chosen.step), told


def state_mark(folder: Path) -> tuple[int, int, int] | None:
    """Return what changes when a checkpoint is written anew; a manifest that is written or judged later changes nothing."""
    try:
        found = (folder / STATE).stat()
    except OSError:  # it is not whole
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_the_same(own: Path, folder: Path) -> bool:
    try:
        return own.samefile(folder) or (own / STATE).read_bytes() == (folder / STATE).read_bytes()
    except OSError:  # one of them is not there
        return False


def _is_no_newer(folder: Path, than: Path) -> bool:
    """Compare when two checkpoints were written: by their manifests, which are the same in a copy, else by their files."""
    created = _created(folder), _created(than)
    if created[0] is not None and created[1] is not None:
        return created[0] <= created[1]
    return written_s(folder) <= written_s(than)


def _created(folder: Path) -> str | None:
    try:
        manifest = manifest_of_now(folder)
    except ManifestError:  # it is passed over, with that as the reason
        return None
    return None if manifest is None else manifest.created

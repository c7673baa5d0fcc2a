"""A checkpoint that several processes write: rank 0 nearly all of it, each of the others its random numbers.

`Trainer._save_checkpoint` makes collectives: operations are added up over all processes before anything is written, and
where a best checkpoint is known all wait for each other after the model was. A process that writes again what the disk has
refused, or gives up, must make each of them once, as the others do; one that has left the training makes none, since
nobody would come to them.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..wrapping import Wrapping

COLLECTIVES = ("store_flos", "barrier")
"""What a save does together with the others, by the names that it calls."""


def folder_of_now(trainer: Any) -> Path:
    """Return the folder that a checkpoint of this moment has."""
    args, step = trainer.args, int(trainer.state.global_step)
    own = getattr(trainer, "_get_output_dir", None)
    return Path(args.output_dir if own is None else own(trial=None)) / f"checkpoint-{step}"


class _WrittenUpToHereError(Exception):
    """Ends a save that only goes through its collectives."""


class SaveTogether:
    """The part of this process in the saves of one trainer; all of it, and nothing is different, where there is one process."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._made: set[str] = set()
        """The collectives of the save at hand that this process has come to."""
        self._is_alone = False
        self._awaited: set[Path] = set()
        """Folders that the others write into as well."""
        self._left_over: set[Path] = set()
        """Folders of checkpoints that were given up, into which the others may have written."""

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the weights, and what is known of them."""
        return bool(getattr(self._trainer.args, "should_save", True))

    @property
    def _count(self) -> int:
        return int(self._trainer.args.world_size)

    def once(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Have `save` make no collective twice, however often it tries."""
        if self._count == 1:
            return save

        def in_step(*args: Any, **kwargs: Any) -> Any:
            import torch.distributed as dist

            folder, args_of_run = folder_of_now(self._trainer), self._trainer.args
            self._made = set(COLLECTIVES) if self._is_alone else set()
            self._awaited.discard(folder)
            if not self._is_alone:
                self._remove_left_over()  # all have trained since: nobody writes there any more
                if not getattr(args_of_run, "save_only_model", False):
                    self._awaited.add(folder)
            changes = Wrapping()
            for owner, name in zip((self._trainer, dist), COLLECTIVES, strict=True):
                changes.wrap(owner, name, partial(self._only_once, name))
            try:
                return save(*args, **kwargs)
            finally:
                changes.restore()

        return in_step

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Save without the others inside the block: they are somewhere else, or have left."""
        self._is_alone = True
        try:
            yield
        finally:
            self._is_alone = False

    def go_without(self, *args: Any, **kwargs: Any) -> None:
        """Make the collectives of a save that is given up, and that the others wait in; nothing is written."""
        if self._count == 1 or self._is_alone:
            return
        from transformers import Trainer

        def end(*_: Any, **__: Any) -> None:
            raise _WrittenUpToHereError

        unwritten = Wrapping()
        unwritten.replace(self._trainer, "save_model", lambda *_, **__: None)
        unwritten.replace(self._trainer, "_save_optimizer_and_scheduler", end)
        unwritten.replace(self._trainer.state, "save_to_json", end)
        try:
            # Of transformers itself: what a subclass writes besides would be refused as well.
            Trainer._save_checkpoint(self._trainer, *args, **kwargs)  # noqa: SLF001
        except _WrittenUpToHereError:
            pass  # all collectives lie before it
        finally:
            unwritten.restore()

    def remove_half_written(self, folder: Path) -> None:
        """Remove what this process has written of a checkpoint; the others may be writing their parts of it."""
        if self._count == 1:
            shutil.rmtree(folder, ignore_errors=True)
            return
        own = f"rng_state_{int(self._trainer.args.process_index)}.pth"
        if not self.is_writer:
            (folder / own).unlink(missing_ok=True)
            return
        self._left_over.add(folder)
        others = set(self._parts(folder)) - {folder / own}
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path not in others:
                path.unlink(missing_ok=True)

    def is_written(self, folder: Path) -> None:
        """Take note of a checkpoint that was written in the end."""
        self._left_over.discard(folder)

    def has_all_parts(self, folder: Path) -> bool:
        """Say whether the others have written their parts, too: nothing tells when they have."""
        # The directory of such an archive is written last.
        return folder not in self._awaited or all(map(zipfile.is_zipfile, self._parts(folder)))

    def close(self) -> None:
        """Remove what is left of checkpoints that were given up: the end of a training comes after all saves of all."""
        self._remove_left_over()

    def _parts(self, folder: Path) -> Iterator[Path]:
        return (folder / f"rng_state_{rank}.pth" for rank in range(self._count))

    def _remove_left_over(self) -> None:
        for folder in self._left_over:
            shutil.rmtree(folder, ignore_errors=True)
        self._left_over.clear()

    def _only_once(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if name in self._made:
                return None
            self._made.add(name)
            return original(*args, **kwargs)

        return collective

"""When the trainer may delete old checkpoints to make room for new ones, and that it does what was put off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...snapshots.manifest import step_of
from ...snapshots.resume import checkpoints_in
from ..wrapping import Wrapping


class Rotation:
    """Holds the deleting of checkpoints back, and has it made up before the next one is written."""

    def __init__(self, trainer: Any, least_wanted_go_first: Callable[[], None]) -> None:
        self._trainer = trainer
        self._least_wanted_go_first = least_wanted_go_first
        self.is_in_trouble = False
        self.suspicious_since: int | None = None
        """The first step of what is only a warning, as long as more may come of it."""
        self._was_put_off = False

    @contextmanager
    def around_save(self, folder: Path, *, is_sick: bool) -> Iterator[None]:
        """Go around the writing of a checkpoint, which deletes others in the end.

        What was put off is done first: a disk that has room for as many as the user allows has none for more.
        """
        keeps_all = is_sick or self._keeps_all(folder.parent)
        if not keeps_all and self._limit and self._trainer.args.should_save:
            self._least_wanted_go_first()
            if self._was_put_off:
                self._rotate(folder.parent, self._limit)
        self._was_put_off = keeps_all
        with keeping_all_checkpoints(self._trainer, where=keeps_all):
            yield

    def _keeps_all(self, run: Path) -> bool:
        """Say whether to delete any now could cost the run the last one that can be trusted.

        Of a mere warning it is one from before it: if it turns out to be harm, that is when it began.
        """
        limit, since = self._limit, self.suspicious_since
        if self.is_in_trouble or since is None or not limit:
            return self.is_in_trouble
        left = checkpoints_in(run)[: limit - 1]  # beside the one that is about to be written
        return not any((step_of(folder) or 0) < since for folder in left)

    @property
    def _limit(self) -> int | None:
        limit: int | None = getattr(self._trainer.args, "save_total_limit", None)
        return limit

    def _rotate(self, run: Path, limit: int) -> None:
        from transformers import trainer_utils

        rotate = getattr(trainer_utils, "rotate_checkpoints", None)
        if rotate is not None:  # else, before transformers 5, the trainer does it once the next one is written
            rotate(str(run), limit, self._trainer.state.best_model_checkpoint, use_mtime=True)


@contextmanager
def keeping_all_checkpoints(trainer: Any, *, where: bool = True) -> Iterator[None]:
    """Have the trainer delete no checkpoint to make room for another inside the block."""
    keeps_all = Wrapping()
    if where and hasattr(trainer.args, "save_total_limit"):
        keeps_all.replace(trainer.args, "save_total_limit", None)
    try:
        yield
    finally:
        keeps_all.restore()

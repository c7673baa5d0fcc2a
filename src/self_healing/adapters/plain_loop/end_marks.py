"""What accelerate counts in a loop of somebody's own, kept with batches that may be handed out again."""

from __future__ import annotations

from typing import Any

from ..rollback.data_windows import EpochData


class EndMarks:
    """What accelerate's loaders say of the batch at hand: whether it is the last, where gradients are added up for long.

    A batch that is handed out again comes from us, while the loader stands where it stood.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._marks: dict[tuple[int, int], tuple[bool, int]] = {}
        self._loader: Any = None
        """The one that was read last; of epochs that are over none is kept."""
        self._has_begun_it = False

    def handed_out(self, epoch: EpochData, at: int, *, is_new: bool) -> None:
        """Take note of a batch that was read, or say of one that is handed out again what was said of it."""
        key = epoch.number, at
        if is_new and hasattr(epoch.loader, "end_of_dataloader"):
            self._loader = loader = epoch.loader
            self._marks = {known: mark for known, mark in self._marks.items() if known[0] >= epoch.number - 2}
            self._marks[key] = loader.end_of_dataloader, loader.remainder
        elif self._loader is not None:
            if not self._trainer.accelerator.gradient_state.in_dataloader:  # it has come to its end before the return
                self._loader.begin()
                self._has_begun_it = True
            self._loader.end_of_dataloader, self._loader.remainder = self._marks.get(key, (False, -1))

    def left(self) -> None:
        """Have a loader that is at its end say so again."""
        if self._has_begun_it:
            self._has_begun_it = False
            self._loader.end()


def blocks_of(stand_in: Any) -> int | None:
    """Return how many blocks accelerate has counted, by which it knows when to update."""
    blocks = getattr(stand_in.accelerator, "step", None)
    return blocks if isinstance(blocks, int) else None

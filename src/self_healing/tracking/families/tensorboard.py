"""TensorBoard: scalars in event files, each with its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..family import TrackerFamily


class Tensorboard(TrackerFamily):
    """Writes through the callback's own writer, with the trainer's step; there are neither alerts nor a page."""

    callback = "TensorBoardCallback"
    is_free_of_threads = True

    def around_log(self, callback: Any, report: Callable[[], Any], figures: Mapping[str, float], step: int) -> Any:
        """Write the figures first: reporting flushes the writer."""
        writer = callback.tb_writer
        if writer is not None:  # of the first process only
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
        return report()

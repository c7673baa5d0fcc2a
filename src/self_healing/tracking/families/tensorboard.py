"""TensorBoard: scalars in event files, each with its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..family import TrackerFamily


class Tensorboard(TrackerFamily):
    """Writes through the callback's own writer, with the trainer's step; there are neither alerts nor a page."""

    callback = "TensorBoardCallback"
    is_free_of_threads = True

    def __init__(self) -> None:
        self._newest: dict[Any, tuple[int, float]] = {}
        """Of each callback the step that was reported last, and how often the run had returned by then."""

    def around_log(self, callback: Any, report: Callable[[], Any], figures: Mapping[str, float], step: int) -> Any:
        """Write the figures first: reporting flushes the writer."""
        writer = callback.tb_writer
        if writer is not None:  # of the first process only
            returns = figures.get("healing/rollbacks", 0)
            newest, before = self._newest.get(callback, (step, returns))
            self._newest[callback] = (step, returns)
            if returns != before and step <= newest:
                _hide_from(writer, step)
            for name, value in figures.items():
                writer.add_scalar(name, value, step)
        return report()


def _hide_from(writer: Any, step: int) -> None:
    """Have readers pass over what was written for this step and later ones, as `SummaryWriter(purge_step=...)` does."""
    if not type(writer).__module__.startswith("torch."):  # tensorboardX, whose events are of another kind
        return
    from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]  # noqa: PLC0415  # where it is used
        Event,
        SessionLog,
    )

    writer.file_writer.add_event(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

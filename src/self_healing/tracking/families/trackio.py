"""Trackio: rows in a local database or a Space, and alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..family import TrackerFamily
from ..message import Message


class Trackio(TrackerFamily):
    """Puts the figures into the row that the callback writes: rows are counted, and one more would shift the rest."""

    callback = "TrackioCallback"
    is_free_of_threads = True
    logs_by = ("trackio", "log")

    def around_log(self, callback: Any, report: Callable[[], Any], figures: Mapping[str, float], step: int) -> Any:
        """Stand before the run's `log` while the callback reports."""
        run = _run_of(callback)
        if run is None or "log" in vars(run):  # nobody reports here, or somebody else stands there
            return report()
        original = run.log

        def log(metrics: dict[str, Any], step: int | None = None) -> Any:
            return original(metrics={**metrics, **figures}, step=step)

        run.log = log
        try:
            return report()
        finally:
            del run.log

    def can_alert(self) -> bool:
        """Say that it can."""
        return True

    def alert(self, callback: Any, message: Message) -> bool:
        """Send an alert, at the newest row; the callback ends its run with the training."""
        if not callback._initialized or _run_of(callback) is None:  # noqa: SLF001  # the callback's own mark
            return False
        trackio: Any = callback._trackio  # noqa: SLF001  # where the callback keeps it
        trackio.alert(title=message.title, text=message.text, level=trackio.AlertLevel[message.level])
        return True

    def page(self, callback: Any) -> str | None:
        """Return the address of the Space, if the run reports to one."""
        space = getattr(callback, "_space_id", None) or getattr(_run_of(callback), "_space_id", None)
        return f"https://huggingface.co/spaces/{space}" if space else None


def _run_of(callback: Any) -> Any:
    """Return the run that the callback reports to: a variable of the context."""
    trackio: Any = callback._trackio  # noqa: SLF001  # where the callback keeps it
    return trackio.context_vars.current_run.get()

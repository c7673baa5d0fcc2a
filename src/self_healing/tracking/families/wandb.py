"""Weights & Biases: rows of a history, and alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..family import TrackerFamily
from ..message import Message


class Wandb(TrackerFamily):
    """Writes into the row that the callback is about to complete, which holds the trainer's step."""

    callback = "WandbCallback"
    is_free_of_threads = True
    logs_by = ("wandb", "log")

    def around_log(self, callback: Any, report: Callable[[], Any], figures: Mapping[str, float], step: int) -> Any:
        """Begin the row with the figures, and let the callback's own report end it."""
        run = _run_of(callback)
        if run is not None:
            run.log(dict(figures), commit=False)
        return report()

    def can_alert(self) -> bool:
        """Say that it can."""
        return True

    def alert(self, callback: Any, message: Message) -> bool:
        """Send an alert; how often is our business, so that its own pause between two is none."""
        run = _run_of(callback)
        if run is not None:
            run.alert(message.title, message.text, message.level, wait_duration=0.001)
        return run is not None

    def page(self, callback: Any) -> str | None:
        """Return the run's page; there is none offline."""
        run = _run_of(callback)
        if run is None or run.settings.mode in ("offline", "disabled"):  # asking for the address would warn
            return None
        address = run.url
        return str(address) if address else None


def _run_of(callback: Any) -> Any:
    """Return the run that the callback reports to."""
    wandb: Any = callback._wandb  # noqa: SLF001  # where the callback keeps it
    return None if wandb is None else wandb.run

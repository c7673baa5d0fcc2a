"""What a family of trackers must be known by: the callback that reports to it, and the way through its own handle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .message import Message


class TrackerFamily:
    """One kind of tracker, as transformers reports to it; a file in `families` each.

    A new one needs nothing but its file: the class is found by the name of the callback. Where no family knows a
    callback, its `on_log` is given the figures beside what is logged, and puts its own prefix before them.
    """

    callback: ClassVar[str]
    """Name of the class of transformers that reports to it; subclasses of it count too."""
    is_free_of_threads: ClassVar[bool] = False
    """Its reports may be made by another thread than the one that trains, so that training need not wait for them."""

    logs_by: ClassVar[tuple[str, str]] = ("", "")
    """A module and its function that trainers report by besides the callback, on the thread that trains."""

    def around_log(self, callback: Any, report: Callable[[], Any], figures: Mapping[str, float], step: int) -> Any:
        """Report what the trainer has logged, by calling `report`, and the figures under exactly their names."""
        raise NotImplementedError

    def rides_along(self) -> bool:
        """Say whether the figures keep their names when they are logged with all else: then that is the way."""
        return False

    def alert(self, callback: Any, message: Message) -> bool:
        """Send an alert; say whether there still was a run that could take it. Called only where `can_alert`."""
        raise NotImplementedError

    def can_alert(self) -> bool:
        """Say whether the tracker has alerts."""
        return False

    def page(self, callback: Any) -> str | None:
        """Return the address where the run is to be seen, if there is one."""
        return None

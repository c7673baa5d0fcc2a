"""A fence around report callbacks: a tracker that is down must not end the training it reports on.

The methods of the callbacks are replaced on the one trainer's callbacks for the time of `train()`. What a callback of
transformers' own integrations raises is noted and survived; of any other callback only what a network raises is, since
everything else is a bug of the user's that must be seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ..data.network import is_network_error
from .tracker_runs import TrackerRuns
from .wrapping import Wrapping

logger = logging.getLogger("self_healing.trainer")

INTEGRATIONS = "transformers.integrations."


class _Tracker:
    """How one report callback has fared."""

    def __init__(self, name: str, *, is_integration: bool) -> None:
        self.name = name
        self.is_integration = is_integration
        self.failing: set[str] = set()
        """Events whose newest call failed."""
        self.lost = 0
        self.told = 0
        """Calls lost when the ledger was last told of it."""
        self.was_back = False


class TrackerFence:
    """The fence around the callbacks of one trainer; a failure is noted once, counted, and the call tried again."""

    def __init__(self, args: Any, note: Callable[[str, str], None]) -> None:
        self._note = note
        self._runs = TrackerRuns(args, note)
        self._wrapping = Wrapping()
        self._trackers: list[_Tracker] = []

    def attach(self, callbacks: list[Any], *, continues: bool) -> None:
        """Fence the callbacks that are there now; where the training continues an earlier one, so do their runs."""
        self._runs.attach(callbacks, continues=continues)
        for callback in callbacks:
            module = type(callback).__module__
            if module.startswith("self_healing.adapters.") or not hasattr(callback, "__dict__"):
                continue
            tracker = _Tracker(type(callback).__name__, is_integration=module.startswith(INTEGRATIONS))
            self._trackers.append(tracker)
            for event in _events_of(callback):
                self._wrapping.wrap(callback, event, partial(self._fenced, tracker, event))

    def detach(self) -> None:
        """Put the callbacks' methods back."""
        self._wrapping.restore()
        self._runs.detach()
        self._trackers.clear()

    def tell_losses(self) -> None:
        """Say what was lost in all, where more was lost than has been said."""
        for tracker in self._trackers:
            if tracker.lost > tracker.told:
                tracker.told = tracker.lost
                self._note("tracker-losses", f"{tracker.name} has lost {tracker.lost} reports in all")

    def _fenced(self, tracker: _Tracker, event: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def fenced(*args: Any, **kwargs: Any) -> Any:
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                # At the beginning nothing is lost yet: a tracker that is set up wrongly is better said aloud.
                is_survived = tracker.is_integration and event != "on_train_begin"
                if not is_survived and not is_network_error(error):
                    raise
                self._failed(tracker, event, error)
                return None
            if event in tracker.failing:
                self._is_back(tracker, event)
            return result

        return fenced

    def _failed(self, tracker: _Tracker, event: str, error: Exception) -> None:
        tracker.failing.add(event)
        tracker.lost += 1
        text = f"{tracker.name}.{event} failed with {type(error).__name__}: {error}"
        if tracker.lost == 1:
            tracker.told = 1
            self._note("tracker-down", f"{text}; training goes on without it, and each later report is tried again")
        else:
            logger.debug("%s", text)

    def _is_back(self, tracker: _Tracker, event: str) -> None:
        tracker.failing.discard(event)
        if not tracker.failing and not tracker.was_back:
            tracker.was_back, tracker.told = True, tracker.lost
            self._note("tracker-back", f"{tracker.name}.{event} works again; {tracker.lost} reports were lost")


def _events_of(callback: Any) -> list[str]:
    """Return the events that a callback's class does something at."""
    from transformers import TrainerCallback

    events = [name for name in vars(TrainerCallback) if name.startswith("on_")]
    return [event for event in events if getattr(type(callback), event, None) is not getattr(TrainerCallback, event)]

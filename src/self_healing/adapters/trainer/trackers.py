"""Between a trainer and the trackers it reports to: our figures go along, and no tracker holds training up.

The methods of the report callbacks are replaced on the one trainer's callbacks for the time of `train()`. What a callback
of transformers' own integrations raises is noted and survived; of any other callback only what a network raises is, since
everything else is a bug of the user's that must be seen. Reports to trackers of a known family are made by a thread of
their own, which training waits for only as long as they are quick.

TRL also reports by itself, in the middle of its steps (how long generations and rewards take, tables of completions): what it
calls by the tracker's own module goes the same way. Calls of the user's are not touched.
"""

from __future__ import annotations

import contextvars
import copy
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.discover import discover_classes
from ...tracking.alert_office import AlertOffice
from ...tracking.courier import Courier, Parcel, close_all
from ...tracking.family import TrackerFamily
from ...tracking.message import Message
from ..data.network import is_network_error
from ..wrapping import Wrapping
from .tracker_runs import TrackerRuns

logger = logging.getLogger("self_healing.trainer")

INTEGRATIONS = "transformers.integrations."
PATIENCE_S = 1.0
"""How long training waits for a report; from then on reports wait their turn, and training for none of them."""
MOST_EPISODES = 3
"""How often training waits in vain before it waits no more."""
END_PATIENCE_S = 60.0
"""How long the end of a training waits for a tracker that was quick up to then: it may have much to upload."""
LATE_PATIENCE_S = 5.0
"""Likewise for one that was not."""
BESIDE_CALLBACKS = "trl"
"""The package whose trainers report by a tracker's own module too."""
OURS = "healing/"
"""What the names begin with that are in the trainer's own log because of us."""

Figures = Callable[[Mapping[str, Any]], dict[str, float]]
"""Returns what trackers are told besides what the trainer logs, which is given."""


class _Tracker:
    """How one report callback has fared."""

    def __init__(self, callback: Any, *, is_integration: bool, family: TrackerFamily | None) -> None:
        self.callback = callback
        self.name = type(callback).__name__
        self.short_name = self.name.removesuffix("Callback").lower()
        self.is_integration = is_integration
        self.family = family
        self.courier = Courier(self.name)
        self.is_offloaded = False
        """Its reports are the courier's."""
        self.context = contextvars.copy_context()
        """What the trainer's thread knows of the tracker's run."""
        self.episodes = 0
        """How often training has waited in vain."""
        self.is_late = False
        self.failing: set[str] = set()
        """Events whose newest call failed."""
        self.lost = 0
        self.told = 0
        """Calls lost when the ledger was last told of it."""
        self.was_back = False
        self.is_stood_before = False
        """What trainers report by its module is fenced too."""
        self.told_of_figures = False

    @property
    def is_known(self) -> bool:
        """Whether our figures can be written through its own handle."""
        return self.family is not None and not self.family.rides_along()


@dataclass(slots=True)
class _Waiting:
    """How long training waits for one report."""

    is_over: bool = False
    error_is_counted: bool = False


class TrackerFence:
    """The fence around the callbacks of one trainer; a failure is noted once, counted, and the call tried again."""

    def __init__(self, args: Any, note: Callable[[str, str], None], figures: Figures = lambda _logs: {}) -> None:
        self._note = note
        self._runs = TrackerRuns(args, note)
        self._figures = figures
        self._wrapping = Wrapping()
        self._trackers: list[_Tracker] = []
        self._office: AlertOffice | None = None
        self._is_fenced = True

    def attach(
        self,
        callbacks: list[Any],
        office: AlertOffice | None = None,
        *,
        continues: bool = False,
        is_fenced: bool = True,
    ) -> None:
        """Stand around the callbacks that are there now; where the training continues an earlier one, so do their runs.

        Without a fence they only get our figures.
        """
        if is_fenced:
            self._runs.attach(callbacks, continues=continues)
        families = {family.callback: family for family in discover_families()}
        self._office, self._is_fenced = office, is_fenced
        for callback in callbacks:
            module = type(callback).__module__
            if module.startswith("self_healing.adapters.") or not hasattr(callback, "__dict__"):
                continue
            family = next((families[cls.__name__] for cls in type(callback).__mro__ if cls.__name__ in families), None)
            tracker = _Tracker(callback, is_integration=module.startswith(INTEGRATIONS), family=family)
            tracker.is_offloaded = is_fenced and family is not None and family.is_free_of_threads
            self._trackers.append(tracker)
            if office is not None and family is not None and family.can_alert():
                office.add_sink(tracker.short_name, partial(_alert, family, tracker), tracker.courier)
            for event in _events_of(callback):
                if is_fenced or event == "on_log":
                    self._wrapping.wrap(callback, event, partial(self._fenced, tracker, event))

    def begin(self) -> dict[str, str]:
        """Take note of the runs that the trackers have begun; return the addresses of those that have a page."""
        pages = {}
        for tracker in self._trackers:
            tracker.context = contextvars.copy_context()
            self._stand_before_the_module(tracker)
            try:
                page = tracker.family.page(tracker.callback) if tracker.family is not None else None
            except Exception as error:  # noqa: BLE001  # the fence: recorded in the log; a page is not worth a run
                logger.info("%s does not say where its page is: %s: %s", tracker.name, type(error).__name__, error)
                continue
            if page is not None:
                pages[tracker.short_name] = page
        return pages

    def detach(self) -> None:
        """Put the callbacks' methods back; what is still under way has a few seconds."""
        self._wrapping.restore()
        self._runs.detach()
        if self._office is not None:
            self._office.hand_over()
            self._office.remove_sinks_of_others()
        close_all([tracker.courier for tracker in self._trackers if tracker.is_late], 0.0)
        close_all([tracker.courier for tracker in self._trackers], LATE_PATIENCE_S)
        self.tell_losses()
        self._trackers.clear()
        self._office = None
        self._figures = _no_figures

    def tell_losses(self) -> None:
        """Say what was lost in all, where more was lost than has been said."""
        for tracker in self._trackers:
            if tracker.lost > tracker.told:
                tracker.told = tracker.lost
                self._note("tracker-losses", f"{tracker.name} has lost {tracker.lost} reports in all")

    # -- one call ------------------------------------------------------------------------------------

    def _fenced(
        self, tracker: _Tracker, event: str, call: Callable[..., Any], *, adds_figures: bool = True
    ) -> Callable[..., Any]:
        def fenced(*args: Any, **kwargs: Any) -> Any:
            is_report = event == "on_log" and adds_figures
            do = self._reporting(tracker, call, args, kwargs) if is_report else partial(call, *args, **kwargs)
            if not self._is_fenced:
                return do()
            try:
                result = self._offloaded(tracker, event, do) if tracker.is_offloaded else do()
            except Exception as error:
                # At the beginning nothing is lost yet: a tracker that is set up wrongly is better said aloud.
                is_survived = tracker.is_integration and event != "on_train_begin"
                if not is_survived and not is_network_error(error):
                    raise
                self._failed(tracker, event, error)
                return None
            if event in tracker.failing and not tracker.is_late:
                self._is_back(tracker, event)
            return result

        return fenced

    def _stand_before_the_module(self, tracker: _Tracker) -> None:
        """Fence what trainers report by the tracker's own module, once the tracker has begun its run there."""
        if tracker.family is None or not self._is_fenced or tracker.is_stood_before:
            return
        module, function = tracker.family.logs_by
        if callable(getattr(sys.modules.get(module), function, None)):
            tracker.is_stood_before = True
            self._wrapping.wrap(sys.modules[module], function, partial(self._beside_the_callback, tracker))

    def _beside_the_callback(self, tracker: _Tracker, call: Callable[..., Any]) -> Callable[..., Any]:
        fenced = self._fenced(tracker, "on_log", call, adds_figures=False)

        def log(*args: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))  # noqa: SLF001  # there is no other way to it
            return (fenced if caller.partition(".")[0] == BESIDE_CALLBACKS else call)(*args, **kwargs)

        return log

    def _reporting(
        self, tracker: _Tracker, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[], Any]:
        """Return a report of what was logged, with our figures in it."""
        logs = kwargs.get("logs")
        if not tracker.is_integration and tracker.family is None:  # the user's own: it gets what it would get
            return partial(call, *args, **kwargs)
        if not isinstance(logs, Mapping) or len(args) < 2:
            return partial(call, *args, **kwargs)
        figures, state = self._figures(logs), args[1]
        if not tracker.is_known:
            return partial(call, *args, **{**kwargs, "logs": {**logs, **figures}})
        kept = {name: value for name, value in logs.items() if not name.startswith(OURS)}
        figures |= {name: value for name, value in logs.items() if name not in kept and name not in figures}
        seen = (args[0], copy.copy(state), *args[2:])  # by the time it is read, training may be elsewhere
        report = partial(call, *seen, **{**kwargs, "logs": kept})
        return partial(self._with_figures, tracker, report, figures, int(state.global_step))

    def _with_figures(self, tracker: _Tracker, report: Callable[[], Any], figures: dict[str, float], step: int) -> Any:
        """Report through the tracker's own handle; where our part of it fails, the rest is reported all the same."""
        reported = []

        def once() -> Any:
            reported.append(True)
            return report()

        assert tracker.family is not None
        try:
            return tracker.family.around_log(tracker.callback, once, figures, step)
        except Exception as error:
            if reported:
                raise
            result = report()  # where that fails too, it is the tracker that is down
            if not tracker.told_of_figures:
                tracker.told_of_figures = True
                said = f"{type(error).__name__}: {error}"
                self._note("figures-lost", f"{tracker.name} does not take the figures of healing: {said}")
            return result

    def _offloaded(self, tracker: _Tracker, event: str, do: Callable[[], Any]) -> Any:
        """Have a call made by the courier, and wait for it only as long as that is reasonable."""
        courier = tracker.courier
        tracker.is_late = tracker.is_late and not courier.is_idle
        if event not in ("on_log", "on_train_end"):  # they read what is on disk now, or set the tracker up
            if not tracker.is_late:
                return do()
            self._lost(tracker)
            return None
        if event == "on_train_end" and self._office is not None:
            self._office.hand_over()  # the tracker may end its run with this
        waiting = _Waiting()
        parcel = courier.send(do, partial(self._was_late, tracker, event, waiting))
        if not parcel.wait(self._patience_s(tracker, event)):
            waiting.is_over = True
            if not parcel.is_over:
                self._tell_late(tracker, event)
                return None
        if parcel.error is not None and not waiting.error_is_counted:  # else it came a moment too late
            raise parcel.error
        parcel.take_over_context()
        return parcel.result

    def _patience_s(self, tracker: _Tracker, event: str) -> float:
        if event == "on_train_end":
            return LATE_PATIENCE_S if tracker.is_late else END_PATIENCE_S
        return 0.0 if tracker.is_late or tracker.episodes >= MOST_EPISODES else PATIENCE_S

    def _tell_late(self, tracker: _Tracker, event: str) -> None:
        if not tracker.is_late:
            tracker.is_late = True
            tracker.episodes += 1
            if tracker.episodes == 1:
                text = f"{tracker.name}.{event} has not returned after {self._waited_s(event):g} s"
                self._note("tracker-slow", f"{text}; training goes on, and reports to it wait their turn")

    @staticmethod
    def _waited_s(event: str) -> float:
        return END_PATIENCE_S if event == "on_train_end" else PATIENCE_S

    def _was_late(self, tracker: _Tracker, event: str, waiting: _Waiting, parcel: Parcel) -> None:
        """Count what came of a report that training does not wait for any more."""
        if parcel.is_lost:
            self._lost(tracker)
        elif waiting.is_over and isinstance(parcel.error, Exception):
            waiting.error_is_counted = True
            self._failed(tracker, event, parcel.error)

    def _lost(self, tracker: _Tracker) -> None:
        tracker.lost += 1

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


def discover_families() -> list[TrackerFamily]:
    """Return every family of trackers there is a file or a plugin for."""
    return [family() for family in discover_classes("self_healing.tracking.families", TrackerFamily).values()]


def _alert(family: TrackerFamily, tracker: _Tracker, message: Message) -> bool:
    """Send an alert from the courier's thread, in the context of the one that trains."""
    return tracker.context.copy().run(family.alert, tracker.callback, message)


def _no_figures(_logs: Mapping[str, Any]) -> dict[str, float]:
    return {}


def _events_of(callback: Any) -> list[str]:
    """Return the events that a callback's class does something at."""
    from transformers import TrainerCallback

    events = [name for name in vars(TrainerCallback) if name.startswith("on_")]
    return [event for event in events if getattr(type(callback), event, None) is not getattr(TrainerCallback, event)]

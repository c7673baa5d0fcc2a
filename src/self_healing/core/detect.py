"""Run every rule on a signal; a crashing rule is fenced, reported and switched off."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from .detector import Detector
from .failure import FailureType, Severity
from .history import History
from .incident import Incident
from .signal import Metrics, Signal

MOST_MIXTURES = 256
"""Mixtures of metrics for which it is remembered which rules want to see them."""


class RuleSet:
    """The rules that are switched on, sorted by the kind of signal they listen to."""

    def __init__(self, rules: Iterable[Detector]) -> None:
        self.rules = {rule.name(): rule for rule in rules}
        self._listeners: dict[object, tuple[Detector, ...]] = {}
        """The rules to call, by the kind of a signal and the metrics in it."""

    def __getitem__(self, name: str) -> Detector:
        return self.rules[name]

    def __contains__(self, name: str) -> bool:
        return name in self.rules

    def detect(self, now: Signal, past: History) -> list[Incident]:
        """Return what the rules report of this signal, crashed rules included."""
        found: list[Incident] = []
        for rule in self._listeners_to(now):
            try:
                incident: object = rule.check(now, past)  # a rule of a user may return anything
            except Exception as error:  # noqa: BLE001  # the fence: becomes a rule-crashed incident
                found.append(self.switch_off(rule.name(), error, now))
                continue
            if incident is None:
                continue
            if not isinstance(incident, Incident):
                wrong = TypeError(f"check() returned {type(incident).__name__}, not an Incident or None")
                found.append(self.switch_off(rule.name(), wrong, now))
                continue
            found.append(incident)
        return found

    def _listeners_to(self, now: Signal) -> tuple[Detector, ...]:
        kind = type(now)
        metrics = tuple(now.values) if isinstance(now, Metrics) else ()
        listeners = self._listeners.get((kind, metrics))
        if listeners is None:
            if len(self._listeners) >= MOST_MIXTURES:  # of a run that invents names
                self._listeners.clear()
            listeners = tuple(
                rule
                for rule in self.rules.values()
                if issubclass(kind, rule.listens)
                and not (metrics and rule.reads and set(rule.reads).isdisjoint(metrics))
            )
            self._listeners[kind, metrics] = listeners
        return listeners

    def switch_off(self, name: str, error: Exception, now: Signal) -> Incident:
        """Take a crashed rule out and describe the crash as an incident of its own."""
        self.rules.pop(name, None)
        self._listeners.clear()
        return crashed(f"rule {name}", error, now)


def crashed(what: str, error: Exception, now: Signal) -> Incident:
    """Describe the crash of a piece of the catalogue as an incident, with the end of its traceback."""
    trace = "".join(traceback.format_exception(error))[-2000:]
    return Incident(
        name="rule-crashed",
        failure=FailureType.OTHER,
        fine="rule_crashed",
        severity=Severity.WARNING,
        step=now.step,
        rank=now.rank,
        time_s=now.time_s,
        subject=what,
        because=f"{what} crashed and is switched off: {type(error).__name__}: {error}",
        trace=trace,
    )

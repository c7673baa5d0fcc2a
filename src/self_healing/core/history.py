"""What is known of a run's past: trackers fed in a fixed order, with a bounded memory of plain values.

One observation goes through three calls: `see` gathers evidence, the rules read it, `settle` lets the values
into the baselines unless an open incident withholds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from math import isfinite

from .incident import Incident
from .series import Series
from .signal import Fact
from .tracker import LASTING, Statistic, Tracked, Tracker, Trackers, TrackerT

MOST_METRICS = 512
"""Distinct metrics that are remembered; later names that no rule needs are ignored, so that a run that invents names
cannot grow us."""

ALWAYS_REMEMBERED = frozenset(
    {"loss", "grad_norm", "learning_rate", "eval_loss", "reward", "reward_std", "kl", "loss_scale", "step_time_s"}
)
"""Metrics that rules and causes look up by name without a statistic: never crowded out by others."""


class History:
    """The past of one run, as far as the rules need it."""

    def __init__(self, needs: Iterable[Statistic] = (), recent: int = 256) -> None:
        self.recent = recent
        self.facts: dict[str, Fact] = {}
        """What is known of the run: vocabulary size, number of classes, warm-up steps..."""
        self.step: int | None = None
        self.time_s: float | None = None
        self.last_beat_s: float | None = None
        """When the run last gave a sign of life, once it has begun to send heartbeats."""
        self.phase = ""
        """What the run said it was doing in its last heartbeat."""
        self._series: dict[str, Series] = {}
        self._paths: dict[str, tuple[Series, list[Tracker]]] = {}
        """Where the values of each metric go to, for every step asks."""
        self._unsettled: dict[str, float] = {}
        self._build(needs)

    def learn(self, facts: Mapping[str, Fact]) -> None:
        """Remember facts of the run; a later value of the same name replaces the earlier one."""
        for name, fact in facts.items():
            if name in self.facts or len(self.facts) < MOST_METRICS:
                self.facts[name] = fact

    def set_clock(self, time_s: float) -> None:
        """Start measuring silence from now: the past that was just taken over is older than its clock says."""
        self.time_s = time_s
        if self.last_beat_s is not None:
            self.last_beat_s = time_s

    def hear(self, time_s: float, phase: str) -> None:
        """Remember a heartbeat."""
        self.last_beat_s, self.phase = time_s, phase

    def see(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Read one observation: finite values become evidence, the others are only counted."""
        self.step, self.time_s = step, time_s
        if self.last_beat_s is not None:  # a completed step is a sign of life too
            self.last_beat_s = time_s
        self._unsettled = unsettled = {}
        paths = self._paths
        for metric, value in values.items():
            path = paths.get(metric) or self._path_of(metric)
            if path is None:
                continue
            series, trackers = path
            series.latest = value
            if not isfinite(value):
                series.nonfinite += 1
                series.nonfinite_run += 1
                continue
            series.finite += 1
            series.nonfinite_run = 0
            series.steps.append(step)
            unsettled[metric] = value
            for tracker in trackers:
                tracker.see(value)

    def settle(self, held: Collection[str] = ()) -> None:
        """Let the values just seen into the baselines, except those of `held` metrics, which wait."""
        unsettled, self._unsettled = self._unsettled, {}
        paths = self._paths
        for metric, value in unsettled.items():
            path = paths.get(metric) or self._path_of(metric)
            assert path is not None, f"{metric} was not seen"
            series, trackers = path
            if metric in held:
                series.withheld.append(value)
                continue
            series.count += 1
            series.admitted.append(value)
            for tracker in trackers:
                tracker.admit(value)

    def release(self, metric: str) -> None:
        """End the withholding: a change that lasted becomes normal, a spike that has passed leaves no trace."""
        series = self._series.get(metric)
        if series is None:
            return
        waiting = list(series.withheld)
        series.withheld.clear()
        series.count += len(waiting)
        series.admitted.extend(waiting)
        for tracker in self._by_metric.get(metric, ()):
            if len(waiting) >= LASTING:
                tracker.rebase(waiting)
                tracker.forget_evidence()
            else:
                tracker.pass_over()

    def forget_evidence(self, metric: str) -> None:
        """Drop the evidence about a metric and the samples that wait, keep its baseline (after a rollback)."""
        if metric in self._series:
            self._series[metric].withheld.clear()
        for tracker in self._by_metric.get(metric, ()):
            tracker.forget_evidence()

    def forget_what_waits(self) -> None:
        """Drop samples that wait for the end of incidents, with what speaks for these: they are another process's."""
        for metric, series in self._series.items():
            if series.withheld:
                self.forget_evidence(metric)

    def stat(self, declaration: Tracked[TrackerT]) -> TrackerT:
        """Return the tracker of a declared statistic."""
        tracker = self._by_identity.get(id(declaration))
        if tracker is not None:
            return tracker  # type: ignore[return-value]  # `build` made it
        try:
            tracker = self._trackers[declaration]
        except KeyError:
            msg = f"{declaration} was not declared: list it in the rule's `needs`"
            raise KeyError(msg) from None
        if len(self._asked_for) < MOST_METRICS:
            self._asked_for.append(declaration)
            self._by_identity[id(declaration)] = tracker
        return tracker

    def latest(self, metric: str) -> float | None:
        """Return the newest value, finite or not; None if there was none."""
        series = self._series.get(metric)
        return None if series is None else series.latest

    def last(self, metric: str, n: int | None = None) -> list[float]:
        """Return up to `n` of the last admitted values, oldest first."""
        series = self._series.get(metric)
        values = [] if series is None else list(series.admitted)
        return values if n is None else values[max(0, len(values) - n) :]

    def previous(self, metric: str) -> float | None:
        """Return the finite value before the newest finite one, whether it was taken for normal or waits; None if there was none."""
        series = self._series.get(metric)
        if series is None:
            return None
        settled = [*series.admitted, *series.withheld]
        at = 1 if metric in self._unsettled else 2
        return settled[-at] if len(settled) >= at else None

    def before(self, incident: Incident, metric: str, n: int) -> list[float]:
        """Return up to `n` of the last values admitted before an incident began: what it let in is no past of its own."""
        series = self._series.get(metric)
        if series is None or incident.onset_step is None:
            return self.last(metric, n)
        since = sum(step >= incident.onset_step for step in series.steps)
        waiting = len(series.withheld) + (metric in self._unsettled)
        values = list(series.admitted)
        values = values[: len(values) - max(0, since - waiting)]
        return values[max(0, len(values) - n) :]

    def step_ago(self, metric: str, observations: int) -> int | None:
        """Return the step of the finite value so many observations ago; 0 is the newest, the oldest is the limit."""
        series = self._series.get(metric)
        if series is None or not series.steps:
            return None
        return series.steps[max(0, len(series.steps) - 1 - observations)]

    def count(self, metric: str) -> int:
        """Return how many values were admitted."""
        series = self._series.get(metric)
        return 0 if series is None else series.count

    def finite_count(self, metric: str) -> int:
        """Return how many finite values were seen, admitted or not."""
        series = self._series.get(metric)
        return 0 if series is None else series.finite

    def nonfinite_run(self, metric: str) -> int:
        """Return how many values in a row up to now were not finite."""
        series = self._series.get(metric)
        return 0 if series is None else series.nonfinite_run

    def nonfinite_total(self, metric: str) -> int:
        """Return how many values were not finite."""
        series = self._series.get(metric)
        return 0 if series is None else series.nonfinite

    def state_dict(self) -> dict[str, object]:
        """Return everything as plain JSON values; statistics are named by their declaration."""
        return {
            "step": self.step,
            "time_s": self.time_s,
            "last_beat_s": self.last_beat_s,
            "phase": self.phase,
            "facts": dict(self.facts),
            "unsettled": dict(self._unsettled),
            "series": {metric: series.state() for metric, series in self._series.items()},
            "statistics": {repr(d): t.state_dict() for d, t in self._trackers.by_declaration.items()},
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Take over a saved past; statistics declared since then start from nothing."""
        parts = {}
        for name in ("facts", "unsettled", "series", "statistics"):
            part = state.get(name)
            if not isinstance(part, Mapping):
                msg = f"saved history lacks {name!r}"
                raise ValueError(msg)  # noqa: TRY004  # the file is wrong, not the call
            parts[name] = part
        step, time_s = state.get("step"), state.get("time_s")
        self.step = step if isinstance(step, int) else None
        self.time_s = float(time_s) if isinstance(time_s, (int, float)) else None
        beat = state.get("last_beat_s")
        self.last_beat_s = float(beat) if isinstance(beat, (int, float)) else None
        self.phase = str(state.get("phase", ""))
        self.facts = dict(parts["facts"])
        self._unsettled = dict(parts["unsettled"])
        self._series = {}
        for metric, saved in parts["series"].items():
            series = self._series_of(metric)
            if series is not None:
                series.restore(saved)
        self._build(tuple(self._trackers.by_declaration))
        for declaration, tracker in self._trackers.by_declaration.items():
            saved = parts["statistics"].get(repr(declaration))
            if saved is not None:
                tracker.load_state_dict(saved)

    def _build(self, needs: Iterable[Statistic]) -> None:
        self._paths.clear()
        self._trackers = Trackers()
        for declaration in needs:
            self._trackers.add(declaration)
        self._by_identity: dict[int, Tracker] = {}
        """Trackers by the numbers of declarations, which take long to compare; kept alive in `_asked_for`."""
        self._asked_for: list[Statistic] = []
        self._by_metric: dict[str, list[Tracker]] = {}
        for declaration, tracker in self._trackers.by_declaration.items():
            self._by_metric.setdefault(declaration.metric, []).append(tracker)

    def _path_of(self, metric: str) -> tuple[Series, list[Tracker]] | None:
        """Return where the values of a metric go to; None for one too many."""
        series = self._series_of(metric)
        if series is None:
            return None
        path = self._paths[metric] = (series, self._by_metric.get(metric, []))
        return path

    def _series_of(self, metric: str) -> Series | None:
        series = self._series.get(metric)
        wanted = metric in self._by_metric or metric in ALWAYS_REMEMBERED
        if series is None and (len(self._series) < MOST_METRICS or wanted):
            series = self._series[metric] = Series(deque(maxlen=self.recent), deque(maxlen=self.recent))
        return series

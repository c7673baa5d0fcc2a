"""Turn the metric lines of a log into observations: which step, and which of the runs in the file.

A log rarely says both. Steps may be missing, or begin anew with every epoch; several runs may have been appended to one
file, and one run may have gone back to an earlier step. The rules are those of `RunCounter`: a fall to the beginning is
a new run, a fall to anywhere else is the same one again. An epoch that rises explains a step that falls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..core.signal import Metrics
from .log_metrics import MetricLine, Place, parse_line
from .log_text import Block
from .log_words import BAR_MARK, METRIC_WORDS, holds_any, lines_with, lowered
from .trainer_state import Observation

_BANNER = re.compile(
    r"running training|start(?:ing|ed)? (?:\w{1,20}+ ){0,5}?training(?!\w)|begin(?:ning)? training|training started"
)
"""What programs say when training begins, in lower case; by itself it proves nothing, for it may be a resume."""
_BANNER_WORD = "training"
_WORDS = (*METRIC_WORDS, _BANNER_WORD, BAR_MARK)
_NEARLY = 0.9
"""A bar that got so far has finished; the next one that begins goes on from there."""


class LogObservation(NamedTuple):
    """One observation of a log."""

    line: int
    """The number of the line that it was printed in."""
    run: int
    """Which of the runs in the file it belongs to, from 0."""
    signal: Metrics
    has_no_step: bool = False
    """Whether its step is only the number of lines so far: neither a line nor a bar has given one."""

    @property
    def observation(self) -> Observation:
        """What a replay is fed with."""
        return Observation(self.run, self.signal)


class _Course:
    """A number that rises during a run: its first value and its newest."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.newest: float | None = None

    def is_back(self, value: float, *, is_announced: bool) -> bool:
        """Say whether a value is that of a new run: fallen to the beginning, or fallen at all after a banner."""
        if self.newest is None or value > self.newest:
            return False
        if is_announced:
            return self.first is None or value < self.newest or value <= self.first
        return value < self.newest and (self.first is None or value <= self.first)

    def go(self, value: float, *, begins: bool = True) -> None:
        self.newest = value
        if self.first is None and begins:
            self.first = value


class _Run:
    """Where one run is."""

    def __init__(self) -> None:
        self.steps = _Course()
        self.epochs = _Course()
        self.headings = _Course()
        """Epochs that were announced in a line of their own; these may count from another number."""
        self.before = 0
        """Steps of the epochs before this one, where steps begin anew with each."""
        self.step: int | None = None
        self.is_told = False
        """Whether a line or a bar has given a step."""
        self.spacing = 1
        self.has_new_epoch = False
        """Whether an epoch has begun since the newest step that a line gave."""
        self.bar: Place | None = None
        self.is_counted_by_lines = False
        """Whether lines of this run give the step together with a loss: a loss without one is then a mean."""
        self.newest: dict[str, float] = {}


class LogMetrics:
    """Reads metrics out of the blocks of one log, in order."""

    def __init__(self) -> None:
        self.run = 0
        self._now = _Run()
        self._is_announced = False
        self._hint = ""
        """The newest progress bar since the last metrics, not parsed yet."""
        self._longest_bar = 0
        self._rank: int | None = None
        self._above = ""
        """The last line of the block before."""

    def of(self, block: Block) -> Iterator[LogObservation]:
        """Yield the observations of the next block."""
        text = block.text
        low = lowered(text)
        for start, end, above in lines_with(_WORDS, low):
            if _is_source(text, start, self._above):
                continue
            found = self._look(text[start:end], low[start:end])
            if found is not None:
                yield LogObservation(block.numbers[above], self.run, found, not self._now.is_told)
        self._above = text[text.rfind("\n") + 1 :]

    def _look(self, line: str, low: str) -> Metrics | None:
        if not holds_any(METRIC_WORDS, low):
            if BAR_MARK in low:
                self._hint = line
            elif _BANNER.search(low):
                self._is_announced = True
            return None
        found = parse_line(line)
        if found is None:
            self._is_announced = self._is_announced or _BANNER.search(low) is not None
            return None
        if not found.values:
            self._pass(found, line)
            return None
        if found.rank is not None:
            if self._rank is None:
                self._rank = found.rank
            if found.rank != self._rank:  # every rank of a data-parallel run says the same
                return None
        return self._placed(found)

    def _pass(self, found: MetricLine, line: str) -> None:
        """Learn from a line without metrics where the run is."""
        if found.place is not None:
            self._hint = line
        elif found.epoch is not None and not found.is_entry:
            if self._now.headings.is_back(found.epoch, is_announced=self._is_announced):
                self._begin()
            headings = self._now.headings
            self._now.has_new_epoch |= headings.newest is not None and found.epoch > headings.newest
            headings.go(found.epoch)

    def _begin(self) -> None:
        self.run += 1
        self._now = _Run()
        self._longest_bar = 0

    def _placed(self, found: MetricLine) -> Metrics | None:
        is_training = any(not name.startswith("eval_") for name in found.values if name != "epoch")
        self._follow_epochs(found, is_training=is_training)
        place = found.place if is_training else None
        given = found.step
        if given is None and place is not None and not found.is_entry:
            given = place.done
        if given is None:
            step = self._counted(found, is_training=is_training)
        elif is_training or self._is_announced or self._now.step is None:
            step = self._given(given, place, found)
        else:  # an evaluation comes after its step, and may count in a unit of its own
            step = max(self._now.step, self._now.before + given)
        self._is_announced, self._hint = False, ""
        values = self._news(found, given)
        if not values:
            return None
        self._now.step = step
        return Metrics(step=step, values=values)

    def _follow_epochs(self, found: MetricLine, *, is_training: bool) -> None:
        if found.epoch is None:
            return
        epochs = self._now.epochs
        if epochs.is_back(found.epoch, is_announced=self._is_announced and found.step is None):
            self._begin()
            epochs = self._now.epochs
        self._now.has_new_epoch |= epochs.newest is not None and found.epoch > epochs.newest
        epochs.go(found.epoch, begins=is_training)

    def _given(self, given: int, place: Place | None, found: MetricLine) -> int:
        """Return the step of a line that gives it."""
        now = self._now
        newest = now.steps.newest
        if self._is_announced and newest is None and now.step is not None:
            self._begin()
            now = self._now
        elif newest is not None and (
            (given <= newest and now.has_new_epoch) or (given < newest and self._has_finished(place))
        ):
            now.before = now.step or 0
            now.steps = _Course()
        elif now.steps.is_back(given, is_announced=self._is_announced):
            self._begin()
            now = self._now
            self._follow_epochs(found, is_training="loss" in found.values)
        now.steps.go(given, begins="loss" in found.values)
        now.is_told = True
        now.has_new_epoch = False
        now.is_counted_by_lines |= "loss" in found.values
        now.bar = place
        return now.before + given

    def _has_finished(self, place: Place | None) -> bool:
        bar = self._now.bar
        return place is not None and bar is not None and bar.done >= _NEARLY * bar.of and place.of == bar.of

    def _counted(self, found: MetricLine, *, is_training: bool) -> int:
        """Return the step of a line that does not give it: that of the bar before it, or one further than the last."""
        now = self._now
        if self._is_announced and now.step is not None and found.epoch is None:
            self._begin()
            now = self._now
        if not is_training or (now.is_counted_by_lines and not found.is_entry):
            return now.step or 0
        last = -1 if now.step is None else now.step
        bar = found.place or self._bar_before()
        is_over = bar is not None and bar is not found.place and bar.done >= bar.of
        if is_over and last < 0:  # data were prepared, or a model loaded: training has only begun
            bar = None
        if bar is not None and bar.of >= self._longest_bar and bar.done > last:
            self._longest_bar = bar.of
            now.is_told = True
            now.spacing = (
                bar.done - last if last > 0 else 1
            )  # a bar at 0 is only late: of a resumed run, by all of its past
            return bar.done
        return last + now.spacing

    def _bar_before(self) -> Place | None:
        if not self._hint:
            return None
        found = parse_line(self._hint)
        return found.place if found is not None else None

    def _news(self, found: MetricLine, given: int | None) -> dict[str, float]:
        """Return the values that a line is the first to tell."""
        now = self._now
        values = dict(found.values)
        if (
            found.place is not None and not found.is_entry
        ):  # a bar goes on showing the last evaluation, and its end twice
            values = {n: v for n, v in values.items() if not (n.startswith("eval_") and _same(now.newest, n, v))}
            if now.step is not None and now.step == now.before + (given or 0):
                values = {n: v for n, v in values.items() if not _same(now.newest, n, v)}
        elif given is None and now.is_counted_by_lines and not found.is_entry:  # the mean over an epoch
            values = {n: v for n, v in values.items() if n.startswith("eval_")}
        now.newest.update(values)
        return values


def _is_source(text: str, start: int, before: str) -> bool:
    """Say whether a line is one of source code in a traceback: the line above names a file."""
    if not text.startswith(("  ", "["), start):  # as it stands, or after the rank
        return False
    above = text[text.rfind("\n", 0, start - 1) + 1 : start] if start else before
    return 'File "' in above


def _same(known: Mapping[str, float], name: str, value: float) -> bool:
    old = known.get(name)
    return old is not None and (old == value or (old != old and value != value))  # noqa: PLR0124  # NaN is itself here


def read_metrics(blocks: Iterable[Block]) -> Iterator[LogObservation]:
    """Yield every observation of a log, with its line and its run, ready for the rules."""
    reader = LogMetrics()
    for block in blocks:
        yield from reader.of(block)

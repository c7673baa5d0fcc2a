"""Where the wall time of a whole run went: every second from its first process to its last belongs to one class.

A process counts the seconds of its training itself (the notes `goodput`, about once a minute and at its end). Here they are put
on the clock of the ledger: what lies before, between and after them is start-up, restarts or waiting, and the steps that a killed
process took after its last note are estimated from the times of its lines. What is left is `unknown`, and is said to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import LedgerError
from ..core.goodput import TimeClass
from ..core.ledger import CONTINUES, Entry
from ..core.run_ledgers import BEGAN, OVER
from .attempt_times import AttemptSpent, AttemptTimes

_HUNG = "hang"
"""How the supervisor's note names the end of an attempt that it ended for its silence."""
_WORTH_TELLING = 0.001
"""The share of the wall time from which on it is told that something is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereTimeWent:
    """The seconds of a run by class; they are never negative and add up to its wall time."""

    seconds: Mapping[TimeClass, float]
    """Every class, also those without time."""
    began_s: float
    """When the run began, in seconds since 1970; 0 where there are no lines."""
    attempts: int
    estimated_s: float
    """How much of it was taken for steps by the times of ledger lines; it may be off by what a step or a save takes."""
    caveats: tuple[str, ...]
    """What is not known, and why: one sentence each."""

    @property
    def wall_s(self) -> float:
        """From the first sign of the run to the last."""
        return math.fsum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """The productive share of the wall time, what is unknown counted as lost; None of a run without any time."""
        return self.seconds[TimeClass.PRODUCTIVE] / self.wall_s if self.wall_s > 0 else None

    @property
    def goodput_at_most(self) -> float | None:
        """The same if all that is unknown was productive."""
        most = self.seconds[TimeClass.PRODUCTIVE] + self.seconds[TimeClass.UNKNOWN]
        return min(1.0, most / self.wall_s) if self.wall_s > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        ratios = {"goodput": self.goodput, "goodput_at_most": self.goodput_at_most}
        return {
            **{name: None if ratio is None else round(ratio, 6) for name, ratio in ratios.items()},
            "wall_seconds": round(self.wall_s, 3),
            "seconds": {str(kind): round(spent, 3) for kind, spent in self.seconds.items()},
            "attempts": self.attempts,
            "estimated_seconds": round(self.estimated_s, 3),
            "caveats": list(self.caveats),
        }


def where_time_went(entries: Iterable[Entry], *, until_s: float | None = None) -> WhereTimeWent:
    """Tell where the time of a run went, in one pass over its ledgers and with a few numbers for each attempt.

    Args:
        entries: `iter_run(own, supervisor)`, or `iter_ledger(path)` where there is no supervisor; what cannot be read to its end is used as far as it goes.
        until_s: Now, in seconds since 1970, of a run that is still going on; None ends it with its last line.

    """
    run = RunTimes()
    problem = ""
    try:
        for entry in entries:
            run.take(entry)
    except (LedgerError, OSError) as error:
        problem = f"the ledger could not be read to its end: {error}"
    if until_s is not None:
        run.goes_on(until_s)
    return run.told(problem)


class RunTimes:
    """Takes in the lines of all attempts one by one; what they come to can be asked at any time."""

    def __init__(self) -> None:
        self._attempts: list[AttemptTimes] = []
        self._is_supervised = False
        """A supervisor has started a command whose end it has not seen yet."""
        self._last_s = -math.inf

    def take(self, entry: Entry) -> None:
        """Take in one line; one without a time is left out."""
        if not math.isfinite(entry.time):
            return
        self._last_s = max(self._last_s, entry.time)
        if entry.kind == "note" and entry.name == BEGAN:
            self._announced(entry)
            return
        if entry.kind == "config" and entry.body.get(CONTINUES) is False:
            self._begin_anew(entry)
        attempt = self._attempt_of(entry)
        if entry.kind == "note" and entry.name == OVER and attempt.over_s is None:
            attempt.over_s, attempt.is_hung = entry.time, entry.body.get("ended_by") == _HUNG
            self._is_supervised = False
        elif attempt.over_s is None:  # else it is the supervisor's, about what it does next
            attempt.take(entry)

    def goes_on(self, now_s: float) -> None:
        """Take in that the run has not ended with its last line."""
        if self._attempts and math.isfinite(now_s):
            self._last_s = max(self._last_s, now_s)
            if self._attempts[-1].over_s is None and not self._attempts[-1].is_finished:
                self._attempts[-1].over_s = now_s

    def _announced(self, entry: Entry) -> None:
        # The first attempt of a job in the folder of an earlier one: somebody has started it.
        gap = TimeClass.DOWN if entry.body.get("attempt") == 1 else TimeClass.RESTARTS
        self._attempts.append(AttemptTimes(entry.attempt, gap, announced_s=entry.time))
        self._is_supervised = True

    def _begin_anew(self, entry: Entry) -> None:
        """Forget what came before: another run begins in the same folder, perhaps in a process that is known already."""
        last = self._attempts[-1] if self._attempts else None
        is_its_process = last is not None and last.number == entry.attempt and last.first_s is None
        self._attempts = [last] if last is not None and is_its_process else []

    def _attempt_of(self, entry: Entry) -> AttemptTimes:
        if not self._attempts or self._attempts[-1].number != entry.attempt:
            gap = TimeClass.DOWN
            if self._is_supervised and self._attempts:  # by the same command: a launcher, or a second training
                gap = TimeClass.OTHER if self._attempts[-1].is_finished else TimeClass.RESTARTS
            self._attempts.append(AttemptTimes(entry.attempt, gap))
        return self._attempts[-1]

    def told(self, problem: str) -> WhereTimeWent:
        """Return where all of it went."""
        sums = dict.fromkeys(TimeClass, 0.0)
        spent: list[AttemptSpent] = []
        began_s = at = self._attempts[0].began_s() if self._attempts else 0.0
        for place, attempt in enumerate(self._attempts):
            since = max(at, attempt.began_s())
            sums[attempt.gap] += since - at
            spent.append(AttemptSpent(attempt, since, is_first=place == 0))
            at = max(since, attempt.ended_s())
        sums[TimeClass.OTHER] += max(0.0, self._last_s - at) if self._attempts else 0.0
        begins: int | None = None
        for each in reversed(spent):
            if each.first_step is not None:
                if begins is not None:
                    each.undo_after(begins)
                begins = each.first_step if begins is None else min(begins, each.first_step)
            for kind, seconds in each.seconds.items():
                sums[kind] += seconds
        return WhereTimeWent(
            seconds=sums,
            began_s=began_s,
            attempts=len(spent),
            estimated_s=math.fsum(each.estimated_s for each in spent),
            caveats=tuple(filter(None, (problem, *self._caveats(sums)))),
        )

    def _caveats(self, sums: Mapping[TimeClass, float]) -> list[str]:
        """Say what is not known."""
        unknown = sums[TimeClass.UNKNOWN]
        if unknown <= _WORTH_TELLING * math.fsum(sums.values()):
            return []
        silent = [each.number for each in self._attempts if each.first_s is None]
        untold = [each.number for each in self._attempts if each.first_s is not None and each.told is None]
        said = [
            f"{unknown:.1f} s are unknown: between the last account of a process and its end, or never accounted for"
        ]
        if silent:
            said.append(f"{_named(silent)} told nothing: the healer was not in it, or not yet")
        if untold:
            said.append(f"{_named(untold)} ended before a first account")
        return said


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"attempt{'s' if len(numbers) > 1 else ''} {shown}"

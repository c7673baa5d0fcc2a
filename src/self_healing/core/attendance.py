"""Who of several ranks still answers: beats and times go in, the ranks that have gone silent come out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BEATS_PER_INTERVAL = 4
"""A lost message or a busy moment must not count: several beats are missed before anybody is named."""
SILENT_AFTER = 1.5
"""Intervals without a beat after which a rank is named."""
CERTAIN_AFTER = 3.0
"""Intervals after which silence alone is enough to act on, where nothing else is known of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """One rank that does not answer."""

    rank: int
    why: str
    """`silent`, or what is known of its process: `gone`, `stopped`, `traced`, `failed`."""
    silent_s: float
    step: int
    """The step it was at when it was heard for the last time."""
    text: str = ""
    """What it has said itself, where it has."""
    stack: str = ""
    """Where its training stood when it was heard for the last time, a line for each frame, the innermost first."""

    @property
    def sentence(self) -> str:
        """Say it in words."""
        told = {
            "gone": "its process is gone",
            "stopped": "its process is stopped (SIGSTOP)",
            "traced": "a debugger has stopped its process",
            "failed": f"it has left with an error ({self.text})",
        }.get(self.why, "it does not answer")
        where = f", in {self.stack.partition(chr(10))[0]}" if self.stack else ""
        return f"rank {self.rank}: {told}, last heard {self.silent_s:.0f} s ago at step {self.step}{where}"


@dataclass
class _Heard:
    count: int = -1
    step: int = 0
    at_s: float = 0.0
    has_ended: bool = False
    error: str = ""
    process: str = ""
    stack: str = ""


@dataclass
class Attendance:
    """The ranks one listens to; times are of one clock that never goes back."""

    interval_s: float
    """The user's `collective_check_interval_s`."""
    began_s: float
    _ranks: dict[int, _Heard] = field(default_factory=dict)
    _looked_s: float | None = None

    @property
    def tick_s(self) -> float:
        """Return how often everybody says something."""
        return self.interval_s / BEATS_PER_INTERVAL

    def expect(self, ranks: Iterable[int]) -> None:
        """Listen to these ranks from now on."""
        for rank in ranks:
            self._ranks.setdefault(rank, _Heard(at_s=self.began_s))

    def hear(self, rank: int, *, count: int, step: int, now_s: float, stack: str = "") -> None:
        """Take note of a beat; one that came late says nothing new."""
        heard = self._ranks[rank]
        if count > heard.count:
            heard.count, heard.step, heard.at_s = count, step, now_s
            heard.process, heard.stack = "", stack

    def ended(self, rank: int, error: str = "") -> None:
        """Take note that a rank has left, in good order or with an error."""
        heard = self._ranks[rank]
        heard.has_ended, heard.error = not error, error

    def has_ended(self, rank: int) -> bool:
        """Say whether a rank has left in good order."""
        return self._ranks[rank].has_ended

    def seen(self, rank: int, process: str) -> None:
        """Take note of what the system says of a rank's process: `gone`, `stopped`, `traced`, or nothing."""
        self._ranks[rank].process = process

    def look(self, now_s: float) -> None:
        """Take note of the time; where this process itself was stopped meanwhile, nobody's silence means anything."""
        before, self._looked_s = self._looked_s, now_s
        if before is not None and now_s - before > 2 * self.tick_s + 1.0:
            for heard in self._ranks.values():
                heard.at_s = now_s

    def absent(self, now_s: float) -> tuple[Absence, ...]:
        """Return who does not answer."""
        found = []
        for rank, heard in sorted(self._ranks.items()):
            silent_s = now_s - heard.at_s
            if heard.has_ended:
                continue
            if heard.error:
                why = "failed"
            elif heard.process == "gone":  # nobody comes back from there
                why = "gone"
            elif silent_s > SILENT_AFTER * self.interval_s:
                why = heard.process or "silent"
            else:
                continue
            found.append(
                Absence(
                    rank=rank, why=why, silent_s=silent_s, step=heard.step, text=heard.error, stack=heard.stack
                )
            )  # fmt: skip
        return tuple(found)

    def is_certain(self, absence: Absence) -> bool:
        """Say whether a rank will not come by itself, so that waiting for it is in vain."""
        if absence.why == "silent":
            return absence.silent_s > CERTAIN_AFTER * self.interval_s
        return absence.why != "traced"  # somebody is looking at it

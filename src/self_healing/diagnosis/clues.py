"""What the text gives away, piece by piece, and which piece is the root: the first cause wins over what it dragged down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ..core.cause import Pattern
from ..core.diagnosis import CONVINCING, SPECIFIC, Hypothesis, diagnose, ranked
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from .text_finding import Seen, shown
from .tracebacks import Passage, bases_of, named_exception

MUCH_SURER = 0.2
"""By so much a later cause must be surer than an earlier one to be taken for the root."""
MOST_PAST = 40
_MOST_SOURCES = 64
_SOME_PROGRESS = 3
_MOST_LINES = 6
_LONGEST_TEXT = 8000
_REMARK = re.compile(r"\b(?:warn|warning|info|debug)\b|Warning:", re.IGNORECASE)
_EVENT = re.compile(r"\bWarning\s{2,40}[A-Z][A-Za-z]+\s")
"""An event of Kubernetes: it calls everything that is not normal a warning, the end of a run included."""
_ENDED_BY_OTHERS = frozenset({"user_interrupt", "preempted"})
_SPARED = frozenset({"tracker_error"})
"""Classes that a run survives: what a line says of them is a remark."""


class Tier(IntEnum):
    """How much a clue says about the root."""

    CAUSE_RAISED = 0
    CAUSE_SAID = 1
    ENDED_FROM_OUTSIDE = 2
    SOMETHING_RAISED = 3
    ECHO = 4
    REMARK = 5
    VAGUE = 6


@dataclass
class Clue:
    """One thing that the text gives away, however often it says it."""

    hypothesis: Hypothesis
    tier: Tier
    first: int
    """The line where it stands first."""
    last: int
    exception: str = ""
    others: tuple[Hypothesis, ...] = ()
    seen: tuple[Seen, ...] = ()
    text: str = ""
    count: int = 1
    sources: list[str] = field(default_factory=list)
    progress: int = 0
    """How much progress had been seen when it was said last."""

    @property
    def fine(self) -> str:
        """The fine class."""
        return self.hypothesis.fine or "script_error"


class Reader:
    """Asks the catalogue what a passage means: the same ranking that live runs are diagnosed with."""

    def __init__(self, patterns: Sequence[Pattern], rows_of: Callable[[bytes], frozenset[str]]) -> None:
        self._rows_of = rows_of
        self._of_text = {row.name: row for row in patterns if row.text}
        self._of_classes = tuple(row for row in patterns if row.exception)

    def clues(self, passage: Passage) -> list[Clue]:
        """Return what a passage gives away: one clue for an exception, one for each line of other text."""
        text = passage.text
        found = self._asked("", text)
        if not passage.exception:
            return [clue for group in self._by_line(passage, found) if (clue := _of_line(passage, *group)) is not None]
        raised = self._asked(passage.exception, passage.message)
        known = {h.name for h in found}
        readings = ranked([*found, *(h for h in raised if h.name not in known)])
        leading = readings[0] if readings and readings[0].weight >= CONVINCING else _unknown(passage.exception)
        return [_clue(passage, leading, readings, passage.decisive, is_raised=True)]

    def _by_line(self, passage: Passage, found: Sequence[Hypothesis]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield what each line gives away: what is first said in it, and what is said in it again."""
        first = [(passage.line_at(hypothesis.at), hypothesis) for hypothesis in found]
        for index, line in enumerate(passage.lines):
            here = [hypothesis for at, hypothesis in first if at == index]
            if line.is_hot or here:
                names = self._rows_of(line.text.encode(errors="replace"))
                yield index, [*here, *(h for at, h in first if at < index and h.name in names)]

    def _asked(self, exception: str, text: str) -> tuple[Hypothesis, ...]:
        if exception:
            rows: Iterable[Pattern] = self._of_classes
        else:
            names = self._rows_of(text.encode(errors="replace"))
            rows = [row for name, row in self._of_text.items() if name in names]
        incident = Incident(
            name="exited", failure=FailureType.CRASH, fine="crash", severity=Severity.ERROR, step=0, because="the text",
            exception=exception, bases=bases_of(exception) if exception else (), text=text,
        )  # fmt: skip
        return diagnose(incident, (), rows, History(), lambda _name, _error: None).hypotheses


def _of_line(passage: Passage, index: int, found: list[Hypothesis]) -> Clue | None:
    readings = ranked(found)
    exception = named_exception(passage.lines[index].text)
    if readings and readings[0].weight >= CONVINCING:
        return _clue(passage, readings[0], readings, index, is_raised=bool(exception))
    if not exception:
        return None
    return replace(_clue(passage, _unknown(exception), readings, index, is_raised=True), exception=exception)


def _unknown(exception: str) -> Hypothesis:
    return Hypothesis(
        name="exception-unknown", says="The program raised an exception that no pattern knows.", weight=CONVINCING,
        failure=FailureType.CRASH, fine="script_error",
        fixes=("Read the innermost lines of the traceback, and correct the code or the value they name.",),
        is_echo=exception == "SystemExit",
    )  # fmt: skip


def _clue(
    passage: Passage, leading: Hypothesis, readings: Sequence[Hypothesis], index: int, *, is_raised: bool
) -> Clue:
    line = passage.lines[index]
    tier = _tier(leading, line.text, is_raised=is_raised)
    return Clue(
        hypothesis=leading, tier=tier, first=line.number, last=line.number, exception=passage.exception,
        others=tuple(h for h in readings if h.name != leading.name and h.fine != leading.fine),
        seen=_seen(passage, index), text=_from(passage, index), sources=[passage.source] if passage.source else [],
    )  # fmt: skip


def _from(passage: Passage, index: int) -> str:
    """Return the words of a passage from the decisive line on, and only then what stands before it."""
    return "\n".join(line.text for line in (*passage.lines[index:], *passage.lines[:index]))[:_LONGEST_TEXT]


def _tier(leading: Hypothesis, line: str, *, is_raised: bool) -> Tier:
    if leading.is_echo:
        return Tier.ECHO
    if leading.weight < SPECIFIC:
        return Tier.SOMETHING_RAISED if is_raised else Tier.VAGUE
    is_number = leading.failure is FailureType.NAN_LOSS  # metrics are printed as information
    is_told = leading.failure is FailureType.PREEMPTED or bool(
        _EVENT.search(line[:200])
    )  # as a warning, by their nature
    if not is_raised and not is_number and (leading.fine in _SPARED or (_REMARK.search(line[:200]) and not is_told)):
        return Tier.REMARK
    if leading.fine in _ENDED_BY_OTHERS:
        return Tier.ENDED_FROM_OUTSIDE
    return Tier.CAUSE_RAISED if is_raised else Tier.CAUSE_SAID


def _seen(passage: Passage, index: int) -> tuple[Seen, ...]:
    """Return the decisive line, and the innermost frame of an exception before it."""
    first = max(0, index - 3) if passage.exception else index
    lines = passage.lines[first : index + _MOST_LINES - 1] if passage.exception else [passage.lines[index]]
    return tuple(Seen(text=shown(line.text), line=line.number) for line in lines[:_MOST_LINES] if line.text.strip())


class Clues:
    """All clues of a text: what is said again counts, what the run went past is over."""

    def __init__(self, enough_progress: int) -> None:
        self._enough = enough_progress
        self._live: dict[tuple[str, str], Clue] = {}
        self.past: list[Clue] = []
        self.held: frozenset[str] = frozenset()
        """Rows that are no longer looked for: whether the run went past them shows only at the end of the text."""
        self.newest = 0
        """The progress at the newest clue."""

    @property
    def live(self) -> list[Clue]:
        """The clues that nothing has gone past so far."""
        return list(self._live.values())

    def add(self, clue: Clue, progress: int) -> None:
        """Take a clue up, or count one that is known."""
        self.newest = progress
        clue.progress = progress
        key = (clue.hypothesis.name, clue.exception)
        known = self._live.get(key)
        if known is not None and progress - known.progress >= self._enough and key[0] not in self.held:
            self._over(key)
            known = None
        if known is None:
            self._live[key] = clue
            return
        known.count += 1
        known.last = max(known.last, clue.last)
        known.progress = progress
        known.tier = min(known.tier, clue.tier)
        known.sources += [s for s in clue.sources if s not in known.sources and len(known.sources) < _MOST_SOURCES]

    def settle(self, progress: int) -> None:
        """Let go of what the run went past."""
        for key, clue in list(self._live.items()):
            if progress - clue.progress >= self._enough:
                self._over(key)

    def finish(self, progress: int) -> None:
        """Take the run's word that it has come to its end: what was said before did not stop it.

        A NaN is one to the end, and an exception right before such a word is not made good by it.
        """
        for key, clue in list(self._live.items()):
            is_raised = clue.tier in (Tier.CAUSE_RAISED, Tier.SOMETHING_RAISED)
            went_on = not is_raised or progress - clue.progress >= _SOME_PROGRESS
            if went_on and clue.hypothesis.failure is not FailureType.NAN_LOSS:
                self._over(key)

    def _over(self, key: tuple[str, str]) -> None:
        clue = self._live.pop(key)
        if clue.tier < Tier.REMARK and len(self.past) < MOST_PAST:
            self.past.append(clue)


def root_first(clues: Iterable[Clue]) -> list[Clue]:
    """Return the clues with the root first: by what they say, then by time, unless another one is much surer.

    A later one, where both were raised or both were said; where one was raised, only what was said before it: a kernel
    that reports an index out of range comes before the library call that fails for it.
    """
    ordered = sorted(clues, key=_place)
    if not ordered:
        return []
    root = ordered[0]
    said_before = Tier.CAUSE_SAID if root.tier == Tier.CAUSE_RAISED else root.tier
    for clue in ordered[1:]:
        is_rival = clue.tier == root.tier or (clue.tier == said_before and clue.first < root.first)
        if is_rival and clue.hypothesis.weight >= root.hypothesis.weight + MUCH_SURER:
            root = clue
    return [root, *(clue for clue in ordered if clue is not root)]


def _place(clue: Clue) -> tuple[float, float, int]:
    """Of consequences the one that says most is worth most; a summary that only says that something failed, least."""
    return (clue.tier, -clue.hypothesis.weight if clue.tier == Tier.ECHO else 0, clue.first)

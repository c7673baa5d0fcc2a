"""Read the text of a run once, in constant memory, and say what it gives away.

reading = TextReading(patterns)
for block in read_blocks(file):
    reading.feed(block)
reading.findings()

The next block is searched in another thread while what was found in the one before is looked at, and while the caller
does something else: google-re2 leaves python's lock to others, and searching is a third of all the work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from ..core.cause import Pattern
from ..readers.log_text import Block, Line
from .clues import Clues, Reader, Tier
from .ending import text_ends_early
from .facts import ENOUGH_BYTES, Facts
from .reporting import findings_of
from .sieve import QUIET_MARKS, Hit, Sieve, sieve_of
from .text_finding import TextFinding
from .tracebacks import Passage
from .walk import LONGEST_LINE, Walk

BEFORE = 3
"""Lines that are kept before one that matters."""
ENOUGH_PROGRESS = 20
"""Lines of metrics or bars after which a run has gone past what was said before them."""
OFTEN = 32
"""Hits after which a row is looked for only at the end of the text: what it says is known, and it would cost time."""
_PROGRESS = ("loss", "it/s", "s/it", "epoch")
_SUMMARY = "wandb:"
_LINES_AT_ONCE = 2000


class _Searched(NamedTuple):
    """A block and the lines in it that matter."""

    block: Block
    data: bytes
    hits: list[Hit]


class TextReading:
    """A text that is being read; feed it blocks, then ask for findings."""

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self.facts = Facts()
        self._patterns = tuple(patterns)
        self._whole = self._sieve = sieve_of(self._patterns)
        self._reader = Reader(self._patterns, self._whole.rows)
        self._clues = Clues(ENOUGH_PROGRESS)
        self._walk = Walk(self._on_passage)
        self._counts: Counter[str] = Counter()
        self._dropped: frozenset[str] = frozenset()
        self._progress = 0
        self._before: list[Line] = []
        self._tail: list[Block] = []
        self._is_finished = False
        self._coming: Future[_Searched] | Block | None = None
        self._aside: ThreadPoolExecutor | None = None

    def feed(self, block: Block) -> None:
        """Read the next lines."""
        if self._coming is None:
            self._coming = block  # most texts are no longer than that, and need no thread
            return
        self._aside = self._aside or ThreadPoolExecutor(1, "text-is-searched")
        coming = self._aside.submit(_searched, block, self._sieve)
        self._take_coming()
        self._coming = coming

    def _take_coming(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            self._take(coming.result() if isinstance(coming, Future) else _searched(coming, self._sieve))

    def _take(self, searched: _Searched) -> None:
        block = searched.block
        if self.facts.looked_at < ENOUGH_BYTES:
            self.facts.look(block.text)
        self._tail = [*self._tail[-1:], block]
        self._go(searched)
        often = frozenset(name for name, count in self._counts.items() if count >= OFTEN) - self._dropped
        if often:
            self._dropped |= often
            self._clues.held = self._dropped
            self._walk.follows = "traceback" not in self._dropped
            self._sieve = sieve_of(self._patterns, without=self._dropped)

    def findings(self) -> list[TextFinding]:
        """Return what the text gives away, the root first; there is nothing more to read."""
        self._take_coming()
        if self._aside is not None:
            self._aside.shutdown()
        self._walk.close()
        if self._dropped:
            self._before = []
            self._walk.follows = True
            for block in self._tail:
                self._go(_searched(block, self._whole), only=self._dropped)
            self._walk.close()
        self._clues.settle(self._progress)
        found = findings_of(self._clues, self.facts)
        if not self._clues.live and not self._is_finished:
            found += text_ends_early(self._tail)
        return found

    def _go(self, searched: _Searched, only: frozenset[str] = frozenset()) -> None:
        block, data, found = searched
        hits = [hit for hit in found if (hit.rows & only if only else self._is_news(hit))]
        if not hits and not self._walk.wants_more:
            self._quiet(block.text)
        else:
            self._walk_over(block, data, hits)
        self._before = _last_lines(block)

    def _is_news(self, hit: Hit) -> bool:
        """Count what a line is of, and say whether it is worth a look."""
        is_news = not hit.rows or any(self._counts[name] < OFTEN for name in hit.rows)
        self._counts.update(hit.rows)
        return is_news

    def _walk_over(self, block: Block, data: bytes, hits: Sequence[Hit]) -> None:
        """Walk over the lines round each hit; what lies between is passed over."""
        lines = block.text.split("\n")
        at = index = place = 0
        for hit in hits:
            index += data.count(b"\n", place, hit.start)
            place = hit.start
            at = self._go_on(block, lines, at, index)
            if at == 0 and not self._walk.wants_more:
                for line in self._before[min(index, BEFORE) :]:
                    self._walk.take(line.number, line.text, is_hot=False)
            start = max(at, index - BEFORE)
            if at < start:
                self._quiet("\n".join(lines[at:start]))
            for near in range(start, index):
                self._walk.take(block.numbers[near], lines[near], is_hot=False)
            if "finished" in hit.rows:
                self._finish()
            is_hot = not hit.rows <= QUIET_MARKS or not hit.rows  # none: what was found goes over several lines
            self._walk.take(block.numbers[index], _round_hit(lines[index], data, hit), is_hot=is_hot)
            at = index + 1
        at = self._go_on(block, lines, at, len(lines))
        if at < len(lines):
            self._quiet("\n".join(lines[at:]))

    def _go_on(self, block: Block, lines: Sequence[str], at: int, end: int) -> int:
        """Walk on as long as what was begun is not complete; return the line after it."""
        while at < end and self._walk.wants_more:
            self._walk.take(block.numbers[at], lines[at], is_hot=False)
            at += 1
        return at

    def _finish(self) -> None:
        self._walk.close()
        self._clues.finish(self._progress)
        self._is_finished = True

    def _quiet(self, text: str) -> None:
        """Pass over text that says nothing, except perhaps that the run goes on."""
        self._walk.close()
        if self._clues.live and self._progress - self._clues.newest < ENOUGH_PROGRESS:
            low = text.lower()
            if _SUMMARY in low:  # what a tracker says at the end holds the names of all metrics
                low = "\n".join(line for line in low.split("\n") if _SUMMARY not in line)
            self._progress += max(low.count(word) for word in _PROGRESS)

    def _on_passage(self, passage: Passage) -> None:
        self.facts.look(passage.text)
        for clue in self._reader.clues(passage):
            self._clues.add(clue, self._progress)
            self._is_finished = self._is_finished and clue.tier >= Tier.REMARK


def _searched(block: Block, sieve: Sieve) -> _Searched:
    data = block.text.encode(errors="replace")
    return _Searched(block, data, list(sieve.hits(data)))


def text_findings(lines: Iterable[Line], patterns: Iterable[Pattern]) -> list[TextFinding]:
    """Return what the lines of a text give away, the root first."""
    reading = TextReading(patterns)
    source = iter(lines)
    while piece := list(islice(source, _LINES_AT_ONCE)):
        reading.feed(Block([line.number for line in piece], "\n".join(line.text.replace("\n", " ") for line in piece)))
    return reading.findings()


def _last_lines(block: Block) -> list[Line]:
    last = block.text.rsplit("\n", BEFORE)[-BEFORE:]
    return [Line(number, text) for number, text in zip(block.numbers[-len(last) :], last, strict=False)]


def _round_hit(line: str, data: bytes, hit: Hit) -> str:
    """Return a line, and of a very long one its beginning and what stands round the match."""
    if len(line) <= LONGEST_LINE:
        return line
    start = max(hit.start, hit.found - LONGEST_LINE // 4)
    around = data[start : min(hit.end, hit.found + LONGEST_LINE // 2)].decode(errors="replace")
    return around if start == hit.start else f"{line[:80]} [...] {around}"

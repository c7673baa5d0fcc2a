"""Read what a command prints while it runs: its metrics, its progress, and what its last words mean.

The reader has a thread of its own and a short queue: whoever prints faster than it reads waits, so that memory stays flat and
no line is passed over.
"""

from __future__ import annotations

import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...core.discover import discover_patterns
from ...diagnosis.text import TextReading
from ...diagnosis.text_finding import TextFinding
from ...readers.log_runs import LogMetrics, LogObservation
from ...readers.log_text import LONGEST_BYTES, Block, live_blocks

NAN_LINES = 2
"""Lines in a row whose loss is no number that mean that training is lost."""
_SAID = re.compile(
    r"(?<![\w/])(?!eval|val|test|dev)(?:\w{1,20}[_/])?loss['\"]?(?: (?:is|was|became|went|turned))?[ \t]{0,4}[=:]?[ \t]{0,4}['\"]?nan(?!\w)"
)
"""How a program says in words, in lower case, that the loss of training is no number (`Loss is NaN at epoch 3`)."""
_SUPPOSED = re.compile(r"\b(?:if|when|whenever|whether|unless|until|in case)\b[^.;:]{0,40}\Z")
"""What stands before it where it is only spoken of (`training is stopped if the loss is NaN`)."""
_WAITING_CHUNKS = 16
_END = b""


@dataclass
class Progress:
    """How far a command has come, as far as its output says."""

    step: int | None = None
    """The furthest that lines and bars let know, also by counting on from one; None where nothing has given one."""
    metric_lines: int = 0
    nan_lines: int = 0
    """Lines with a loss since the last one whose loss was a number."""
    nan_since_s: float | None = None
    """When the first of them was read, in seconds since the epoch."""

    @property
    def is_nan(self) -> bool:
        """Whether the loss is no number, and not for one line only."""
        return self.nan_lines >= NAN_LINES

    def take(self, seen: LogObservation) -> None:
        """Learn from one line of metrics."""
        self.metric_lines += 1
        if not seen.has_no_step:
            self.step = max(self.step or 0, seen.signal.step)
        losses = [value for name, value in seen.signal.values.items() if _is_of_training(name)]
        losses = [value for value in losses if not math.isinf(value)]
        if any(math.isnan(value) for value in losses):
            self.take_nan()
        elif losses:
            self.nan_lines, self.nan_since_s = 0, None

    def take_nan(self) -> None:
        """Count a line that says that the loss is no number."""
        self.nan_lines += 1
        self.nan_since_s = self.nan_since_s or time.time()


class LiveText:
    """The text of one attempt; `stream` is given to whoever reads one of its streams."""

    def __init__(self, on_lines: Callable[[Block], None] | None = None) -> None:
        self.progress = Progress()
        self.trouble = ""
        """Why the text is no longer read, once it could not be."""
        self._on_lines = on_lines
        self._reading = TextReading(discover_patterns("self_healing.patterns"))
        self._metrics = LogMetrics()
        self._queue: queue.Queue[bytes] = queue.Queue(_WAITING_CHUNKS)
        self._streams: list[_Stream] = []
        self._thread = threading.Thread(target=self._read, name="heal-text", daemon=True)
        self._thread.start()

    def stream(self) -> Callable[[bytes], None]:
        """Return where one stream is fed in: lines of different streams are not mixed up."""
        made = _Stream(self._queue.put)
        self._streams.append(made)
        return made.feed

    def findings(self) -> list[TextFinding]:
        """Return what the text gives away, the root first; there is nothing more to read."""
        for each in self._streams:
            each.finish()
        self._queue.put(_END)
        self._thread.join()
        return self._reading.findings()

    def _read(self) -> None:
        try:
            self._read_all()
        except Exception as error:  # noqa: BLE001  # a bug of ours: it is told, and the command goes on unread
            self.trouble = f"its output is no longer read, only passed on: {type(error).__name__}: {error}"
            for _ in self._chunks():
                pass

    def _read_all(self) -> None:
        for block in live_blocks(self._chunks()):
            self._reading.feed(block)
            if self._on_lines is not None:
                self._on_lines(block)
            self._take_metrics(block)

    def _take_metrics(self, block: Block) -> None:
        seen = {each.line: each for each in self._metrics.of(block)}
        said = {line.number for line in block.lines() if _says_nan(line.text.lower())} if _has_nan(block) else set()
        for number in sorted(seen.keys() | said):
            if number in seen:
                self.progress.take(seen[number])
            else:
                self.progress.take_nan()

    def _chunks(self) -> Iterator[bytes]:
        while data := self._queue.get():
            yield data


def _says_nan(text: str) -> bool:
    return any(not _SUPPOSED.search(text, 0, said.start()) for said in _SAID.finditer(text))


def _has_nan(block: Block) -> bool:
    return "nan" in block.text.lower()


def _is_of_training(name: str) -> bool:
    return name.endswith("loss") and not name.startswith("eval")


class _Stream:
    """Passes whole lines on, and keeps what is not finished yet."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put = put
        self._rest = b""

    def feed(self, data: bytes) -> None:
        whole = self._rest + data
        end = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        if not end and len(whole) > LONGEST_BYTES:  # a line longer than any person wrote
            end = len(whole)
        self._rest = whole[end:]
        if end:
            self._put(whole[:end])

    def finish(self) -> None:
        if self._rest:
            self._put(self._rest + b"\n")
            self._rest = b""

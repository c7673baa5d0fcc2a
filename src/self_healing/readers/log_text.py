"""Read a log of any origin as clean, numbered lines, in constant memory.

What real logs hold and what becomes of it: terminal escapes and control characters are removed, bytes that are no UTF-8
replaced, UTF-16 (as PowerShell writes it) and gzip read as what they are. A line that a progress bar has redrawn keeps
its last state and every state that may show metrics. A line longer than any that a person wrote loses its middle.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ..core.errors import InputError
from .log_words import METRIC_WORDS
from .text_file import GZIP, UTF16, refuse_other_content, unreadable

EXPECTED = "expected the text of a log, plain or as gzip"
CHUNK_BYTES = 256 * 2**10
"""What is read and cleaned at once: large enough that work per line counts, small enough to stay in the cache."""
HEAD_BYTES = 48 * 2**10
TAIL_BYTES = 16 * 2**10
LONGEST_BYTES = HEAD_BYTES + TAIL_BYTES
"""Of a longer line the beginning and the end are kept: an error stands at either, and metrics are shorter."""
_MARK_ROOM = 64

_DROPPED = bytes(set(range(32)) - set(b"\t\n\r\b\a\x1b")) + b"\x7f"
_BACKSPACES = re.compile(rb"\x08++")
_ESCAPES = re.compile(
    rb"\x1b\[[0-?]*+[ -/]*+[@-~]"  # colours and cursor movements
    rb"|\x1b[\]PX^_][^\x07\x1b\n\r]*+(?:\x07|\x1b\\)"  # titles, links, device strings
    rb"|\x1b[ -/]*+[0-~]?+"
)
_UNSEEN = re.compile(
    r"[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]++"
)
"""Control characters outside ASCII, text direction and invisible marks: nothing that a terminal may be told by a log."""
_UNSEEN_PARTS = (b"\xc2", b"\xd8\x9c", b"\xe2\x80", b"\xe2\x81", b"\xef\xbb\xbf", b"\xef\xbf", b"\xf3\xa0")
"""How these begin in UTF-8; the blocks that bars are drawn with begin otherwise."""
_METRIC_WORDS = tuple(word.encode() for word in METRIC_WORDS)
_BAR_MARKS = (b"it/s", b"s/it", b"?it", b"ETA", b"B/s")
_OPEN_ALREADY = re.compile(r"/dev/(?:stdin|fd/\d{1,9})")


class Line(NamedTuple):
    """One line of a log, or one state of a line that was redrawn."""

    number: int
    """Its place in the file, from 1, counted by line feeds; states of one redrawn line share it."""
    text: str


class Block(NamedTuple):
    """Some lines at once, for those who look at many: joined by line feeds, with a number for each."""

    numbers: Sequence[int]
    text: str

    def lines(self) -> Iterator[Line]:
        """Yield the lines one by one."""
        return map(Line, self.numbers, self.text.split("\n"))


@dataclass
class LogFacts:
    """What was noticed of a log as a whole while it was read."""

    lines: int = 0
    """Lines so far, counted by line feeds; an unfinished last one counts."""
    bytes: int = 0
    """Bytes so far, unpacked."""
    cut: int = 0
    """Lines that were too long to keep whole."""
    is_packed: bool = False
    damage: str = ""
    """Why the log ends before its end, where it does."""


@contextmanager
def open_log(path: str | Path) -> Iterator[BufferedIOBase]:
    """Open a log for `read_blocks`; `-` is standard input.

    Raises:
        InputError: there is no such file, or it is neither a regular file nor a pipe that is open already.

    """
    if str(path) == "-":
        yield sys.stdin.buffer  # type: ignore[misc]  # a BufferedReader wherever there is a standard input
        return
    try:
        mode = Path(path).stat().st_mode
        if not stat.S_ISREG(mode) and not _OPEN_ALREADY.fullmatch(os.fspath(path)):
            raise InputError(f"{path}: is not a regular file; {EXPECTED}")
        file = Path(path).open("rb")  # noqa: SIM115  # closed below; an error while it is used is not one of opening it
    except OSError as error:
        raise InputError(unreadable(Path(path), error, EXPECTED)) from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{os.fspath(path)!r}: is not a file name; {EXPECTED}") from error
    with file:
        yield file


def read_lines(source: BufferedIOBase, facts: LogFacts | None = None, *, name: str = "-") -> Iterator[Line]:
    """Yield the clean lines of a log; see `read_blocks`."""
    for block in read_blocks(source, facts, name=name):
        yield from block.lines()


def read_blocks(source: BufferedIOBase, facts: LogFacts | None = None, *, name: str = "-") -> Iterator[Block]:
    """Yield the clean lines of a log, many at a time; nothing is held longer than until the next block.

    Raises:
        NotFetched: it is a pointer of Git LFS or git-annex.
        InputError: it is empty, no text, or cannot be read.

    """
    facts = LogFacts() if facts is None else facts
    yield from _Lines(facts).blocks(_text_chunks(_chunks(source, name), facts, name))


def live_blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Yield the clean lines of what is being printed, as soon as it is; every state of a progress bar is a line here.

    Whatever the bytes are, they are text: nothing is refused or unpacked.
    """
    return _Lines(LogFacts()).blocks(_with_redrawn_lines(chunks))


def _with_redrawn_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for chunk in chunks:
        data = held + chunk
        held = b"\r" if data.endswith(b"\r") else b""  # the line feed of a line end may come with the next one
        yield data.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def unpacked_chunks(source: BufferedIOBase, facts: LogFacts, name: str) -> Iterator[bytes]:
    """Yield the bytes of a file as they are, unpacked where it is gzip."""
    head, chunks = _with_head(_chunks(source, name))
    return _unpacked(chunks, facts) if head.startswith(GZIP) else chunks


def _chunks(source: BufferedIOBase, name: str) -> Iterator[bytes]:
    try:
        while chunk := source.read1(CHUNK_BYTES):
            yield chunk
    except OSError as error:
        raise InputError(f"{name}: cannot be read to its end ({error.strerror or error})") from error


def _text_chunks(chunks: Iterator[bytes], facts: LogFacts, name: str) -> Iterator[bytes]:
    """Yield the bytes of a log as UTF-8, whatever it is packed or written in."""
    head, chunks = _with_head(chunks)
    if head.startswith(GZIP):
        facts.is_packed = True
        head, chunks = _with_head(_unpacked(chunks, facts))
    refuse_other_content(name, head, EXPECTED, harmless=b"\0\a\b\x1b")
    return _from_utf16(chunks) if head.startswith(UTF16) else chunks


def _with_head(chunks: Iterator[bytes], wanted: int = 4096) -> tuple[bytes, Iterator[bytes]]:
    """Return the beginning of a stream, and the whole stream again; a pipe may give its first bytes one by one."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head.lstrip(b"\0")) >= wanted or len(head) >= LONGEST_BYTES:
            break
    return head, chain((head,), chunks)


def _unpacked(chunks: Iterable[bytes], facts: LogFacts) -> Iterator[bytes]:
    """Unpack gzip a bounded piece at a time: a small archive may hold a very long line; one that is cut off ends early."""
    unzip = None
    for chunk in chunks:
        data = chunk
        while data:
            unzip = unzip or zlib.decompressobj(31)
            try:
                piece = unzip.decompress(data, CHUNK_BYTES)
                while piece:
                    yield piece
                    data = unzip.unconsumed_tail
                    piece = unzip.decompress(data, CHUNK_BYTES)
            except zlib.error as error:
                facts.damage = f"the gzip archive is damaged ({error})"
                return
            data = b""
            if unzip.eof:  # several archives may follow one another
                data, unzip = unzip.unused_data.lstrip(b"\0"), None
    if unzip is not None:
        facts.damage = "the gzip archive ends in the middle"


def _from_utf16(chunks: Iterable[bytes]) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode(errors="replace")
    yield decoder.decode(b"", final=True).encode(errors="replace")


class _Lines:
    """Cuts a stream into lines; what is not finished yet waits, without its middle where it grows too long."""

    def __init__(self, facts: LogFacts) -> None:
        self.facts = facts
        self._waiting = b""
        self._lost = 0
        """Bytes cut out of the line that waits."""

    def blocks(self, chunks: Iterable[bytes]) -> Iterator[Block]:
        for chunk in chunks:
            self.facts.bytes += len(chunk)
            kept = chunk.translate(None, _DROPPED)
            if b"\b" in kept:  # older progress bars walk back over themselves
                kept = _BACKSPACES.sub(b"\r", kept)
            data = self._waiting + kept
            end = data.rfind(b"\n") + 1
            self._waiting = data[end:]
            if end:
                yield self._block(data[: end - 1])
            if len(self._waiting) > LONGEST_BYTES:
                yield from self._relieved()
        if self._waiting:
            whole, self._waiting = self._waiting, b""
            yield self._block(whole)

    def _relieved(self) -> Iterator[Block]:
        """Let go of what an unfinished line no longer shows, and of its middle."""
        waiting = self._waiting
        redrawn = waiting.rstrip(b"\r \t").rfind(b"\r")
        if redrawn >= 0:
            earlier, waiting = waiting[:redrawn], waiting[redrawn + 1 :]
            states = _states(_without_escapes(self._marked(earlier)), finished=False)
            if states:
                yield Block([self.facts.lines + 1] * len(states), _decoded(b"\n".join(states)))
        if len(waiting) > LONGEST_BYTES:
            self._lost += len(waiting) - LONGEST_BYTES
            waiting = waiting[:HEAD_BYTES] + waiting[-TAIL_BYTES:]
        self._waiting = waiting

    def _block(self, whole: bytes) -> Block:
        """Return finished lines, cleaned; the last one without its line feed."""
        data = _without_escapes(self._marked(whole))
        if b"\r" in data:  # line ends of Windows; the last line's line feed is cut off already
            data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
        first = self.facts.lines + 1
        count = data.count(b"\n") + 1
        self.facts.lines += count
        is_redrawn = b"\r" in data
        if not is_redrawn and not _has_longer(data, LONGEST_BYTES + _MARK_ROOM):
            return Block(range(first, first + count), _decoded(data))
        numbers: list[int] = []
        kept: list[bytes] = []
        for number, line in enumerate(data.split(b"\n"), first):
            states = _states(line) if is_redrawn and b"\r" in line else [line]
            numbers.extend([number] * len(states))
            kept.extend(self._shortened(state) for state in states)
        return Block(numbers, _decoded(b"\n".join(kept)))

    def _marked(self, data: bytes) -> bytes:
        """Say in the first line, or the first state of it, which waited, what it has lost."""
        lost, self._lost = self._lost, 0
        if not lost:
            return data
        self.facts.cut += 1
        end = data.find(b"\n")
        end = len(data) if end < 0 else end
        redrawn = data.find(b"\r", 0, end)
        end = end if redrawn < 0 else redrawn
        lost += max(0, end - LONGEST_BYTES)
        return data[:HEAD_BYTES] + _mark(lost) + data[max(HEAD_BYTES, end - TAIL_BYTES) :]

    def _shortened(self, line: bytes) -> bytes:
        lost = len(line) - LONGEST_BYTES
        if lost <= _MARK_ROOM:
            return line
        self.facts.cut += 1
        return line[:HEAD_BYTES] + _mark(lost) + line[-TAIL_BYTES:]


def _has_longer(data: bytes, most: int) -> bool:
    """Say whether a line is longer than so many bytes; such a line lies over one of every so many bytes."""
    for place in range(most, len(data), most):
        end = data.find(b"\n", place)
        if (len(data) if end < 0 else end) - data.rfind(b"\n", 0, place) - 1 > most:
            return True
    return False


def _without_escapes(data: bytes) -> bytes:
    if b"\x1b" in data:
        data = _ESCAPES.sub(b"", data)
    return data.replace(b"\a", b"") if b"\a" in data else data  # until here it may have ended an escape


def _decoded(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    if not text.isascii() and any(part in data for part in _UNSEEN_PARTS):
        text = _UNSEEN.sub("", text)
    return text


def _mark(lost: int) -> bytes:
    return b" [... %d bytes cut ...] " % lost


def _states(line: bytes, *, finished: bool = True) -> list[bytes]:
    """Return what is worth reading of a line that was redrawn: the last state, those with metrics, and what is no bar.

    A bar just before metrics stays too: it knows the step where they do not say it. Bytes, because most states go.
    """
    kept: list[bytes] = []
    place = 0
    for start in sorted(_telling(line.lower())):
        end = line.find(b"\r", start)
        end = len(line) if end < 0 else end
        kept += _quiet(line[place:start], bar_too=True)
        kept.append(line[start:end])
        place = end + 1
    rest = line[place:]
    if not finished:
        return kept + _quiet(rest)
    earlier, _, last = rest.rstrip().rpartition(b"\r")
    kept += _quiet(earlier)
    return [*kept, last] if last or not kept else kept


def _quiet(states: bytes, *, bar_too: bool = False) -> list[bytes]:
    """Return which of several states without metrics are no bars, and the last bar where it is wanted."""
    kept: list[bytes] = []
    bar = b""
    for state in states.split(b"\r"):
        if b"%|" in state:
            bar = state
        elif not state or state.isspace():
            continue
        elif any(mark in state for mark in _BAR_MARKS):
            bar = state
        elif not kept or kept[-1] != state:  # a spinner says the same many times
            kept.append(state)
    return [*kept, bar] if bar and bar_too else kept


def _telling(low: bytes) -> set[int]:
    """Return where the states begin that may show metrics: looked for in all at once, for bars are redrawn often."""
    starts = set()
    for word in _METRIC_WORDS:
        found = low.find(word)
        while found >= 0:
            starts.add(low.rfind(b"\r", 0, found) + 1)
            end = low.find(b"\r", found)
            found = low.find(word, end) if end >= 0 else -1
    return starts

"""Take the lines of one process apart into printed exceptions and what stands between them."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

HEADER = "Traceback (most recent call last)"
MOST_FRAME_LINES = 8
"""Lines kept of the innermost frames: they say where it was raised, and the outer ones how it was called."""
MOST_MESSAGE_LINES = 14
MOST_PLAIN_LINES = 40
_FRAME = re.compile(r'\s{0,40}File "')
_RAISED = re.compile(
    r"((?:[A-Za-z_]\w{0,80}\.){0,12}[A-Za-z_]\w{0,80})(?:\((\w{1,80})\))?(?:: ?(.*)|\s{0,4})$", re.DOTALL
)
_PRINTED = re.compile(
    r"((?:[A-Za-z_]\w{0,60}\.){0,12}[A-Z]\w{0,60}(?:Error|Exception|Interrupt|Exit|Timeout))(?:\(\w+\))?(?::|\s{0,4}$)"
)
_NEW_ENTRY = re.compile(
    r"\[|\d{4}-\d\d-\d\d|\d\d[:/]\d\d|wandb:|(?:WARNING|INFO|ERROR|DEBUG|CRITICAL)\b|[EWIF]\d{4} |\s{0,8}\d{1,3}%\||\{['\"]"
    r"|Traceback |During handling of|The above exception|srun:|slurmstepd:|-{20}|={20}"
)
_NOTEBOOK = re.compile(r"([A-Za-z_]\w{0,80})\s{3,60}Traceback \(most")
_BOX = ("\u2502", "\u256d", "\u2570", "\u2500", "\u2501", "|", "+-")
_IGNORED = "Exception ignored in"
_HANDLING = "During handling of the above exception"
_CAUSE = "The above exception was the direct cause"


class Taken(NamedTuple):
    """A line of a process: its number in the log, what it says, and whether it may be of a row."""

    number: int
    text: str
    is_hot: bool


@dataclass
class Passage:
    """Lines of one process that belong together."""

    source: str
    lines: list[Taken] = field(default_factory=list)
    exception: str = ""
    """The class that was printed, where it is an exception."""
    message: str = ""
    decisive: int = 0
    """Which of the lines names the exception."""
    relation: str = ""
    """How the one before led to it: `handling`, `cause`, or not at all."""

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(line.text for line in self.lines)

    def line_at(self, place: int) -> int:
        """Return which of the lines holds a character of the text."""
        for index, line in enumerate(self.lines):
            place -= len(line.text) + 1
            if place < 0:
                return index
        return len(self.lines) - 1


class Trace:
    """An exception that is being printed: knows which lines are still frames.

    Besides Python's own form there are that of notebooks, which begins with the name of the exception and goes on to the line
    that begins with it again, and that of rich, which draws a box.
    """

    def __init__(self, header: str = HEADER) -> None:
        named = _NOTEBOOK.match(header)
        self._name = named[1] if named else ""
        self._is_boxed = header.lstrip().startswith(_BOX)
        self._base: int | None = None

    def is_frame(self, text: str) -> bool:
        """Say whether the next line still belongs to the frames; the first that does not names the exception."""
        bare = text.lstrip()
        if not bare:
            return True
        if self._name:
            return not text.startswith(self._name)
        if self._is_boxed:
            return bare.startswith(_BOX)
        indent = len(text) - len(bare)
        if self._base is None:
            if indent == 0 and not _FRAME.match(text):
                return False
            self._base = max(0, indent - 2)
            return True
        return indent > self._base or bare.startswith('File "')


def passages(source: str, lines: Sequence[Taken]) -> list[Passage]:
    """Return the exceptions that a process printed, and the other lines that may matter, in order."""
    found: list[Passage] = []
    plain: list[Taken] = []
    relation = ""
    index = 0
    while index < len(lines):
        line = lines[index]
        if HEADER not in line.text:
            if line.text.lstrip().startswith(_HANDLING):
                relation = "handling"
            elif line.text.lstrip().startswith(_CAUSE):
                relation = "cause"
            else:
                plain.append(line)
            index += 1
            continue
        is_ignored = index > 0 and lines[index - 1].text.lstrip().startswith(_IGNORED)
        _end_plain(found, source, plain)
        passage, index = _exception(source, lines, index)
        if passage is not None and not is_ignored:
            passage.relation, relation = relation, ""
            found.append(passage)
    _end_plain(found, source, plain)
    return found


def _end_plain(found: list[Passage], source: str, plain: list[Taken]) -> None:
    while plain:
        part, plain[:] = plain[:MOST_PLAIN_LINES], plain[MOST_PLAIN_LINES:]
        if any(line.is_hot for line in part):
            found.append(Passage(source, part))


def _exception(source: str, lines: Sequence[Taken], start: int) -> tuple[Passage | None, int]:
    """Return the exception that is printed from a header on, and the line after it."""
    trace = Trace(lines[start].text)
    index = start + 1
    while index < len(lines) and HEADER not in lines[index].text and trace.is_frame(lines[index].text):
        index += 1
    frames = [line for line in lines[start + 1 : index] if line.text.strip()][-MOST_FRAME_LINES:]
    if index >= len(lines) or HEADER in lines[index].text:
        return None, index  # cut off before its name
    named = _RAISED.match(lines[index].text.strip())
    if named is None:
        return None, index
    end = index + 1
    while end < len(lines) and end - index <= MOST_MESSAGE_LINES and _goes_on(lines[end].text):
        end += 1
    message = "\n".join([named[3] or "", *(line.text for line in lines[index + 1 : end])])
    kept = [*frames, *lines[index:end]]
    return Passage(source, kept, named[2] or named[1], message.rstrip(), len(frames)), end


def _goes_on(text: str) -> bool:
    return bool(text.strip()) and HEADER not in text and not _NEW_ENTRY.match(text)


def named_exception(text: str) -> str:
    """Return the exception that a line by itself names, as the last line of a traceback does; empty where it names none."""
    found = _PRINTED.match(text.strip())
    return found[1] if found else ""


def bases_of(exception: str) -> tuple[str, ...]:
    """Return what a printed class is derived from, where it is one of Python's own."""
    known = getattr(builtins, exception.rpartition(".")[2], None)
    if isinstance(known, type) and issubclass(known, BaseException):
        return tuple(f"builtins.{base.__name__}" for base in known.__mro__[1:-1])
    return ()

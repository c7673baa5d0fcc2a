"""How commands speak: tables and text for people, JSON for programs; nothing from a file can move the terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from enum import Enum
from typing import TYPE_CHECKING

from ..core.secrets import strip_control

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPED_WIDTH = 140
"""Columns of what is not shown on a terminal: wide enough for sentences, narrow enough for a reader."""


def console() -> Console:
    """Return a console that interprets no markup and has a sane width when piped."""
    from rich.console import Console

    width = None
    if not sys.stdout.isatty():
        asked = os.environ.get("COLUMNS", "")
        width = int(asked) if asked.isdecimal() and 40 <= int(asked) <= 1000 else PIPED_WIDTH

    class Screen(Console):
        """Flushes what others have written, and where nobody reads it any more would end the command as failed."""

        def on_broken_pipe(self) -> None:
            leave_the_pipe()

    return Screen(width=width, markup=False, emoji=False, highlight=False)


def write(text: str) -> None:
    """Write to stdout; where its reader has gone, as `heal rules | head` makes it, the rest goes nowhere."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        leave_the_pipe()


def leave_the_pipe() -> None:
    """Let what is still to be written go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(text: str = "") -> None:
    """Print one paragraph, without control characters; what is piped is left in one line."""
    if sys.stdout.isatty():
        _render(strip_control(text))
    else:
        write(strip_control(text) + "\n")


def show_styled(*parts: tuple[str, str]) -> None:
    """Print one paragraph of parts, each with a style that only a terminal shows; what is piped is left in one line."""
    if not sys.stdout.isatty():
        show("".join(text for text, _ in parts))
        return
    from rich.text import Text

    _render(Text.assemble(*((strip_control(text), style) for text, style in parts)))


def _render(thing: RenderableType) -> None:
    """Print a renderable; what is piped has no blanks at the ends of lines."""
    screen = console()
    with screen.capture() as captured:
        screen.print(thing)
    text = captured.get()
    if not sys.stdout.isatty():
        text = "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n") + "\n\n"
    write(text)


def warn(text: str) -> None:
    """Print one sentence to stderr."""
    print("heal: " + " ".join(strip_control(text).split()), file=sys.stderr)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, widest: str = "") -> None:
    """Print a table; cells are folded, never cut off, and the `widest` column gets the room that is left."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=strip_control(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    cells = [tuple(str(cell) for cell in row) for row in rows]
    for place, name in enumerate(columns):
        # Names stay whole as long as they are names: they are there to be copied.
        longest = max((len(row[place]) for row in cells), default=0)
        is_name = place == 0 and longest <= 40
        table.add_column(name, overflow="fold", ratio=1 if name == widest else None, no_wrap=is_name)
    for row in cells:
        table.add_row(*(Text(strip_control(cell)) for cell in row))
    _render(table)


def show_markdown(text: str) -> None:
    """Print Markdown as rich renders it."""
    from rich.markdown import Markdown

    _render(Markdown(strip_control(text)))


def show_json(data: Mapping[str, object], *, inside_html: bool = False) -> None:
    """Print one JSON object: strict, ASCII, without control characters; `inside_html` makes it harmless in a page too."""
    text = json.dumps(plain(data), indent=2, allow_nan=False)
    if inside_html:  # these occur in strings only, where JSON may write them so
        text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    write(text + "\n")


def plain(value: object) -> object:
    """Return a value as strict JSON can hold it; floats that JSON has no word for become text."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, str):
        return strip_control(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return {strip_control(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(str(plain(item)) for item in value)
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return None if value is MISSING else strip_control(str(value))

"""What can be given to a diagnosis: a file or folder, recognised by its content, read as one stream of items.

Every format is one file in `formats/`, found by discovery: a class that says whether it knows an input and yields what
is in it. An item is a block of log lines, an observation, or an entry of our ledger; a log gives the first two.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from ..core.discover import discover_classes
from ..core.errors import InputError
from ..core.ledger import Entry
from ..core.naming import kebab_case
from ..core.signal import Signal
from .log_text import Block

HEAD_BYTES = 2**16
STDIN = "-"
_OPEN_ALREADY = re.compile(r"/dev/(?:stdin|fd/\d{1,9})")
"""Pipes that are open already: opening another one would wait for a writer."""
READABLE = (
    "expected a log, a trainer_state.json, a ledger, metrics as CSV or JSON lines, a TensorBoard event file, "
    "or the folder of a run, of wandb or of trackio"
)


class Seen(NamedTuple):
    """One observation, and where it stood."""

    run: int
    """Which of the runs in the file it belongs to, from 0."""
    signal: Signal
    line: int = 0
    """The line it was printed in, from 1; 0 where the format has no lines worth naming."""


Item = Block | Seen | Entry


@dataclass
class Reading:
    """What was noticed of an input while it was read."""

    damage: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""
    format: str = ""
    """What was found inside, where the input was packed or piped."""
    cut_off: str = ""
    """One sentence, where the input ends in the middle and only what is whole of it is read."""


@dataclass(frozen=True)
class Candidate:
    """An input whose format is looked for."""

    path: Path
    is_folder: bool
    head: bytes
    """The first bytes of a file; nothing of a folder."""
    size: int
    is_stdin: bool = False

    @property
    def name(self) -> str:
        """Return what the input is called in messages."""
        return STDIN if self.is_stdin else os.fspath(self.path)

    def has(self, *names: str) -> bool:
        """Say whether a folder holds one of these files or folders."""
        return self.is_folder and any((self.path / name).exists() for name in names)


class InputFormat:
    """One format: says whether it knows an input, and yields what is in it. One file each, discovered by folder."""

    order: ClassVar[int] = 50
    """Formats with a lower number are asked first; the one that knows everything else comes last."""

    @classmethod
    def name(cls) -> str:
        """Return the format's public name, derived from the class name."""
        return kebab_case(cls.__name__)

    def knows(self, candidate: Candidate) -> bool:
        """Say whether the input is of this format."""
        raise NotImplementedError

    def parts(self, candidate: Candidate, reading: Reading) -> list[Path] | None:
        """Return the files that a folder stands for, the most telling first; None where the input is read itself."""
        return None

    def items(self, candidate: Candidate, reading: Reading) -> Iterator[Item]:
        """Yield what is in the input, in its order; `reading` learns what could not be read.

        Raises:
            InputError: there is nothing to read; the text names the file, what was found and what is expected.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class Source:
    """An input whose format is known."""

    candidate: Candidate
    format: InputFormat

    def parts(self, reading: Reading) -> list[Path] | None:
        """Return the files that it stands for, or None where it is read itself."""
        return self.format.parts(self.candidate, reading)

    def items(self, reading: Reading) -> Iterator[Item]:
        """Yield what is in it."""
        return self.format.items(self.candidate, reading)


@lru_cache(1)
def _formats() -> tuple[InputFormat, ...]:
    found = discover_classes("self_healing.readers.formats", InputFormat)
    return tuple(sorted((cls() for cls in found.values()), key=lambda known: (known.order, known.name())))


def open_source(path: str | Path) -> Source:
    """Recognise an input by its content.

    Raises:
        InputError: there is no such input, or it is of no format that can be read here.

    """
    candidate = candidate_of(path)
    for known in _formats():
        if known.knows(candidate):
            return Source(candidate, known)
    raise InputError(f"{candidate.name}: is of no format that can be read here; {READABLE}")


def candidate_of(path: str | Path) -> Candidate:
    """Look at an input: its kind, its size and its first bytes; of standard input (`-`) nothing is taken away."""
    if str(path) == STDIN:
        peek = getattr(getattr(sys.stdin, "buffer", None), "peek", None)
        return Candidate(Path(STDIN), is_folder=False, head=peek(HEAD_BYTES) if peek else b"", size=0, is_stdin=True)
    if not str(path):
        raise InputError(f"'': is not a file name; {READABLE}")
    place = Path(path)
    try:
        facts = place.stat()
        if stat.S_ISDIR(facts.st_mode):
            return Candidate(place, is_folder=True, head=b"", size=0)
        head = b""
        if stat.S_ISREG(facts.st_mode):
            with place.open("rb") as file:
                head = file.read(HEAD_BYTES)
    except FileNotFoundError as error:
        raise InputError(f"{place}: there is no such file or folder; {READABLE}") from error
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{os.fspath(place)!r}: is not a file name; {READABLE}") from error
    if not stat.S_ISREG(facts.st_mode) and not (stat.S_ISFIFO(facts.st_mode) and _OPEN_ALREADY.fullmatch(str(place))):
        raise InputError(f"{place}: is neither a regular file nor a folder; {READABLE}")
    return Candidate(place, is_folder=False, head=head, size=facts.st_size)

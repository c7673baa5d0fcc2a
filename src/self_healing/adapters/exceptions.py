"""Describe an exception for the core: names over its whole chain, message, and the place it comes from."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from ..core.cause import Pattern

MOST_TEXT = 20_000
OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""Where our own code lies, as frames name it; what is installed beside it is somebody else's."""
MAKING_UP = str(Path(__file__).parent / "step" / "make_up.py")
"""What runs the training's own passes once more, at a callback of ours."""


class Described(TypedDict):
    """The fields of a `Raised` signal that come from the exception."""

    exception: str
    bases: tuple[str, ...]
    message: str
    where: str


def describe(error: BaseException) -> Described:
    """Return what the patterns look at; never imports the exception's package."""
    names: list[str] = []
    for link in chain(error):
        names.extend(name_of(cls) for cls in type(link).__mro__ if cls not in (object, BaseException, Exception))
    return Described(
        exception=name_of(type(error)),
        bases=tuple(dict.fromkeys(names[1:])),
        message=text_of(error)[:MOST_TEXT],
        where=_where(error),
    )


def text_of(error: BaseException) -> str:
    """Return an exception's message, also of one whose own `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001  # a bug of the exception's class, told in the place of its message
        return f"its message cannot be read: {type(raised).__name__} in __str__"


def is_known_to(patterns: Iterable[Pattern], error: BaseException) -> bool:
    """Say whether one of these rows of the catalogue describes an exception."""
    seen = describe(error)
    return any(row.evidence(seen["exception"], seen["bases"], seen["message"]) is not None for row in patterns)


def remarks_on(error: BaseException) -> list[str]:
    """Return what we have remarked on an exception on its way: it says more than the exception alone."""
    return [note for note in getattr(error, "__notes__", []) if note.startswith("self-healing: ")]


def is_pruning(error: BaseException) -> bool:
    """Say whether a hyperparameter search ends a trial with this: a decision of its own, nothing to be healed or saved."""
    return any(cls.__name__ == "TrialPruned" for cls in type(error).__mro__)


def came_from_a_callback(error: BaseException) -> bool:
    """Say whether a callback of somebody else has raised it: not a fault of the training, and perhaps meant to end it."""
    frames = [(frame.f_code.co_filename, frame.f_code.co_name) for frame, _ in traceback.walk_tb(error.__traceback__)]
    called = [place for place, (file, name) in enumerate(frames) if name == "call_event" and "trainer_callback" in file]
    inside = [file for file, _ in frames[called[-1] + 1 :]] if called else []
    return MAKING_UP not in inside and any(not file.startswith(OURS) for file in inside)


def chain(error: BaseException, *, with_context: bool = True) -> list[BaseException]:
    """Return the exception and those it was raised from, without going round in circles.

    Without context only explicit causes count: what merely happened earlier explains nothing by itself.
    """
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in found and len(found) < 16:
        found.append(link)
        shows_context = with_context and not link.__suppress_context__
        link = link.__cause__ or (link.__context__ if shows_context else None)
    return found


def name_of(cls: type) -> str:
    """Return the full name of a class, or the bare one of a builtin."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename.rpartition('/')[2]}:{last.lineno} in {last.name}"

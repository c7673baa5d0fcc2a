"""Replace attributes of objects for a while and put every one back exactly as it was."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("self_healing.trainer")

_ABSENT = object()


class Wrapping:
    """The attributes replaced so far, newest last; `restore` undoes them in reverse order."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object, object]] = []

    def replace(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute on the instance, remembering whether it had one of its own."""
        own = vars(owner)
        self._undo.append((owner, name, own.get(name, _ABSENT), value))
        setattr(owner, name, value)

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put `make(original)` in the place of a method of this one instance, with the original's name and marks."""
        original = getattr(owner, name)
        # Marks count: a scheduler recognises the optimizer step it has wrapped by one.
        self.replace(owner, name, functools.wraps(original)(make(original)))

    @staticmethod
    def is_of_transformers(trainer: Any, name: str) -> bool:
        """Say whether a method is the trainer's as transformers wrote it, not a subclass's or somebody's replacement."""
        method = getattr(type(trainer), name, None)
        return getattr(method, "__module__", None) == "transformers.trainer" and name not in vars(trainer)

    def restore(self) -> None:
        """Put everything back; what somebody else has replaced meanwhile is left alone, and that is said in the log."""
        while self._undo:
            owner, name, before, ours = self._undo.pop()
            if vars(owner).get(name, _ABSENT) is not ours:
                logger.warning(
                    "%s.%s was replaced by somebody else meanwhile and is left as it is", type(owner).__name__, name
                )
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

"""Names that somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from ..hub import Hub
from ..hub.hub import RepositoryKind

_CLOSE = 0.78
"""Names of one family differ by little (`-0.5B`, `-1.5B`): what is nearer than that may be a slip of the hand."""
_NEARLY = 0.85
MOST_SHOWN = 5


def near_name(name: str, known: Collection[str]) -> str | None:
    """Return the name that was probably meant; authors are compared apart from what they have."""
    author, _, own = name.lower().rpartition("/")
    best, best_ratio = None, _CLOSE
    if not author:  # of many that are as near the most used one, which comes first
        best = next((each for each in known if _likeness(own, each.lower().rpartition("/")[2]) > _NEARLY), None)
        if best is not None and best != name:
            return best
    for each in known:
        its_author, _, its_own = each.lower().rpartition("/")
        ratio = _likeness(own, its_own)
        if author and its_author != author:
            ratio = min(ratio, _likeness(author, its_author) + (own == its_own) * 0.2)
        if ratio > best_ratio and each != name:
            best, best_ratio = each, ratio
    return best


def _likeness(one: str, other: str) -> float:
    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    return max(ratio, 0.9) if len(one) > 2 and sorted(one) == sorted(other) else ratio  # letters that changed places


class Suggestions:
    """What else there is on the Hub, asked for while other things are."""

    def __init__(self, hub: Hub, kind: RepositoryKind, name: str) -> None:
        self._name = name
        author, _, own = name.rpartition("/")
        self._author = author
        self._of_author = hub.by_author(kind, author) if author else None
        self._of_search = hub.by_search(kind, own)
        self._of_start = hub.by_search(kind, own[: max(3, len(own) // 2)]) if not author else None
        other: RepositoryKind = "dataset" if kind == "model" else "model"
        self._other, self._as_other = other, hub.repository(other, name)

    def near(self) -> str | None:
        """Return the name that was probably meant."""
        for asked in (self._of_author, self._of_search, self._of_start):
            if asked is not None and (found := near_name(self._name, asked.answer().names)) is not None:
                return found
        return None

    def others(self) -> tuple[str, ...]:
        """Return what else the author has of that kind."""
        return self._of_author.answer().names if self._of_author is not None else ()

    def is_other_kind(self) -> str:
        """Return the kind it is of, where there is one of another; else an empty text."""
        return self._other if self._as_other.answer().repository is not None else ""

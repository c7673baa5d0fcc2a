"""Containers of other people's kinds, made anew."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any


def like(mapping: Mapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> Any:
    """Return a mapping of the same kind with other items; a defaultdict keeps its factory, an object its attributes."""
    if not isinstance(mapping, MutableMapping):
        return type(mapping)(dict(items))  # type: ignore[call-arg]
    made = copy.copy(mapping)
    refill(made, items)
    return made


def refill(mapping: MutableMapping[Any, Any], items: Iterable[tuple[Any, Any]]) -> None:
    """Give a mapping other items, one by one: `update` means something else to some, such as counting to a Counter."""
    items = list(items)  # they may come from the mapping itself
    mapping.clear()
    for key, value in items:
        mapping[key] = value

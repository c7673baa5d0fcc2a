"""A batch of any form as a flat mapping of names to values, and back: what cuts, copies and searches batches knows no other."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...core import containers

Build = Callable[[Mapping[str, Any]], Any]
"""Makes a batch of the form that was taken apart, of other values."""

_ROWS = (str, bytes, int, float, bool, type(None))
"""What a list holds that has a value per row, and is no structure."""


class BatchFields:
    """The values of one batch by name: the keys of a dictionary, the places in a tuple, `1.labels` where they are nested."""

    __slots__ = ("_batch", "_build", "_is_new", "_versions", "fields")

    def __init__(self, batch: Any) -> None:
        self.fields: dict[str, Any] = {}
        self._build = _taken_apart(batch, "", self.fields)
        self._batch = batch
        self._is_new = True
        self._versions = self._versions_now()

    def is_changed(self) -> bool:
        """Say whether somebody has written into the batch: it cannot be used again as it was."""
        return self._versions_now() != self._versions

    def _versions_now(self) -> list[int]:
        """Return torch's counts of writes; numbers and text have none, and need none."""
        values = self.fields.values()
        return [each._version for each in values if isinstance(each, torch.Tensor) and not each.is_inference()]  # noqa: SLF001

    def batch(self, fields: Mapping[str, Any]) -> Any:
        """Return a batch of these values: the very one that was given where they are its own, the first time.

        Later it is made anew, for a loss may have taken entries out of it.
        """
        if fields is self.fields and self._is_new:
            self._is_new, batch = False, self._batch
            self._batch = None
            return batch
        return self._build(fields)


def _taken_apart(value: Any, name: str, fields: dict[str, Any]) -> Build:
    """Put what a value is made of into `fields`; return what puts it together."""
    if isinstance(value, dict | UserDict):
        parts = {key: _taken_apart(inner, _within(name, key), fields) for key, inner in value.items()}
        return lambda given: _filled(value, {key: build(given) for key, build in parts.items()})
    if isinstance(value, tuple | list) and any(not isinstance(item, _ROWS) for item in value):
        items = [_taken_apart(inner, _within(name, place), fields) for place, inner in enumerate(value)]
        if hasattr(value, "_make"):  # a named tuple
            return lambda given: value._make(build(given) for build in items)
        return lambda given: type(value)(build(given) for build in items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        attributes = {
            each.name: _taken_apart(getattr(value, each.name), _within(name, each.name), fields)
            for each in dataclasses.fields(value)
        }
        return lambda given: _with_attributes(value, {key: build(given) for key, build in attributes.items()})
    key = name or "batch"
    while key in fields:  # keys may hold dots, or be numbers and text alike
        key += "'"
    fields[key] = value
    return lambda given: given[key]


def _within(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def _filled(like: Any, content: dict[Any, Any]) -> Any:
    """Return a dictionary of the same kind with another content."""
    if type(like) is dict:
        return content
    if not isinstance(like, UserDict):
        return containers.like(like, content.items())
    new = copy.copy(like)
    new.data = content
    return new


def _with_attributes(like: Any, attributes: dict[str, Any]) -> Any:
    new = copy.copy(like)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)  # also where it is frozen
    return new

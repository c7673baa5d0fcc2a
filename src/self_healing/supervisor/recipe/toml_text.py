"""The values of a TOML text; changed by tomlkit, which keeps comments and layout."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Float, Trivia

from .leaf import Leaf, Unreadable
from .numbers import number_of, written
from .setting import KeyPath


def toml_leaves(text: str) -> list[Leaf]:
    """Return every value of a text; tables of an array have their number in the path.

    Raises:
        Unreadable: it is no TOML.

    """
    try:
        return list(_walk((), tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise Unreadable(f"is not valid TOML: {error}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of nested brackets
        raise Unreadable("is not valid TOML: a number is too long or lists are nested too deeply") from None


def _walk(path: KeyPath, value: object) -> Iterator[Leaf]:
    if isinstance(value, dict | list):
        yield Leaf(
            path=path, value=None, target=path, problem=f"holds a {'table' if isinstance(value, dict) else 'list'}"
        )
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            yield from _walk((*path, str(key)), inner)
        return
    text = value if isinstance(value, str) else str(value).lower()
    number = number_of(text) if isinstance(value, str) else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    yield Leaf(path=path, value=text if number is None else number, target=path)


def toml_changed(text: str, values: Mapping[KeyPath, float | str]) -> str:
    """Return a text with other values; a text that was quoted stays one.

    Raises:
        Unreadable: tomlkit cannot write the text so that only these values differ.

    """
    meant = tomllib.loads(text)
    try:
        document: Any = tomlkit.parse(text)
        for path, value in values.items():
            _put(document, path, Float(value, Trivia(), written(value)) if isinstance(value, float) else value)
            _put(meant, path, float(written(value)) if isinstance(value, float) else value)
        changed = tomlkit.dumps(document)
        found = tomllib.loads(changed)
    except (TOMLKitError, tomllib.TOMLDecodeError, KeyError, IndexError) as error:
        raise Unreadable(f"cannot be changed as TOML: {error}") from None
    if repr(meant) != repr(found):  # NaN is not equal to itself, but its text is
        raise Unreadable("cannot be changed as TOML without changing more than was meant")
    return changed


def _put(document: Any, path: KeyPath, value: float | str) -> None:
    for part in path[:-1]:
        document = document[int(part) if isinstance(document, list) else part]
    last = int(path[-1]) if isinstance(document, list) else path[-1]
    document[last] = (
        written(float(value) if isinstance(value, float) else value) if isinstance(document[last], str) else value
    )

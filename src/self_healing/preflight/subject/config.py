"""A config file as settings: YAML, JSON or TOML, with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from .files import read_bytes, text_of_config
from .formats import Places, Written, line_below, read_json, read_toml, read_yaml
from .frameworks import framework_of
from .values import UNKNOWN

LARGEST_BYTES = {".yaml": 48 << 10, ".yml": 48 << 10, ".json": 1 << 20, ".toml": 256 << 10}
"""By how long the parsers take; configs are far smaller."""
MOST_VALUES = 20_000
"""YAML's aliases can make billions of values of a few lines."""
SUFFIXES = frozenset(LARGEST_BYTES)


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One value of a config: a leaf, or a list of leaves."""

    path: tuple[str, ...]
    value: object
    """As the loaders of transformers, TRL and Axolotl see it: YAML 1.1, where `2e-4` is a text."""
    text: str
    """As it is written."""
    line: int


@dataclass(frozen=True, slots=True)
class Config:
    """A config file."""

    path: Path
    named: str
    text: str
    values: tuple[ConfigValue, ...]
    content: Mapping[str, Any]
    """The whole of it."""
    framework: str = ""
    """Whose it is: `axolotl`, `trl`, `hydra`, `accelerate`, `deepspeed`, `llama-factory`, `job`; empty where that is not known."""

    def get(self, *path: str) -> object:
        """Return a value by its path; UNKNOWN where there is none."""
        here: object = self.content
        for part in path:
            if not isinstance(here, Mapping) or part not in here:
                return UNKNOWN
            here = here[part]
        return here

    def line_of(self, *path: str) -> int:
        """Return the line of a key; 0 where it is not there."""
        return next((value.line for value in self.values if value.path[: len(path)] == path), 0)


def read_config(path: Path, named: str) -> Config:
    """Return a config that was read.

    Raises:
        InputError: it cannot be read, or is not what its ending says.

    """
    suffix = path.suffix.lower()
    text = text_of_config(read_bytes(path, named, "a config", LARGEST_BYTES[suffix]), named)
    read = {".json": read_json, ".toml": read_toml}.get(suffix, read_yaml)
    content, places = read(text, named)
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise InputError(f"{named}: {what}, and not settings by their names")
    counted = _Counted(named, places)
    return Config(path, named, text, tuple(counted.values(content, ())), content, framework_of(content))


class _Counted:
    """Makes a list of everything that a config holds, and refuses what has no end."""

    def __init__(self, named: str, places: Places) -> None:
        self._named = named
        self._places = places
        self._left = MOST_VALUES

    def values(self, node: object, path: tuple[str, ...]) -> Iterator[ConfigValue]:
        self._left -= 1
        if self._left < 0:
            raise InputError(f"{self._named}: holds more than {MOST_VALUES:,} values, so it is hardly a config")
        if isinstance(node, Mapping):
            for key, value in node.items():
                yield from self.values(value, (*path, str(key)))
        elif isinstance(node, list) and any(isinstance(each, Mapping | list) for each in node):
            for place, value in enumerate(node):
                yield from self.values(value, (*path, str(place)))
        elif path:
            written: Written = line_below(self._places, path)
            yield ConfigValue(path, node, written.text or _shown(node), written.line)


def _shown(value: object) -> str:
    words = {True: "true", False: "false"} if isinstance(value, bool) else {None: "null"} if value is None else {}
    return words.get(value, "") if words else str(value)[:1000]  # type: ignore[call-overload]

"""A config file as settings: YAML, JSON or TOML, with the line of each key."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning, MarkedYAMLError, YAMLError

from ...core.errors import InputError
from .values import UNKNOWN

LARGEST_BYTES = 4 << 20
MOST_VALUES = 20_000
"""YAML's aliases can make billions of values of a few lines."""
_NO_FLOAT = re.compile(r"[-+]?\d+[eE][-+]?\d+")
"""A number to everybody but PyYAML, which wants a point in it (and a sign behind the e)."""
SUFFIXES = frozenset({".yaml", ".yml", ".json", ".toml"})


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
    try:
        if not path.is_file():
            raise InputError(f"{named}: there is no such file" if not path.exists() else f"{named}: is no regular file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{named}: cannot be read ({error.strerror})") from error
    if len(raw) > LARGEST_BYTES:
        raise InputError(f"{named}: has more than {LARGEST_BYTES:,} bytes, so it is hardly a config")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{named}:{line}: is not UTF-8 text") from None
    content, lines = _toml(text, named) if path.suffix.lower() == ".toml" else _yaml(text, named)
    if not isinstance(content, dict):
        raise InputError(f"{named}: holds no settings, but {type(content).__name__}")
    values = []
    for found in _values(content, (), lines):
        values.append(found)
        if len(values) > MOST_VALUES:
            raise InputError(f"{named}: holds more than {MOST_VALUES:,} values, so it is hardly a config")
    return Config(path, named, text, tuple(values), content)


def _values(
    node: object, path: tuple[str, ...], lines: Mapping[tuple[str, ...], tuple[int, str]]
) -> Iterator[ConfigValue]:
    line, text = lines.get(path, (0, ""))
    if isinstance(node, float) and _NO_FLOAT.fullmatch(text):
        node = text
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _values(value, (*path, str(key)), lines)
    elif isinstance(node, list) and any(isinstance(each, Mapping | list) for each in node):
        for place, value in enumerate(node):
            yield from _values(value, (*path, str(place)), lines)
    elif path:
        yield ConfigValue(path, node, text or _shown(node), line)


def _shown(value: object) -> str:
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if value in (True, False, None)
        else str(value)
    )


# -- the formats -------------------------------------------------------------------------------------


def _yaml(text: str, named: str) -> tuple[object, dict[tuple[str, ...], tuple[int, str]]]:
    """Return the content as YAML 1.1 has it, and the line and text of each key; JSON is a part of YAML."""
    lines: dict[tuple[str, ...], tuple[int, str]] = {}
    try:
        root = next(iter(_reader().compose_all(text)), None)
        if root is not None:
            _places(root, (), lines, text, [MOST_VALUES])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # there is a check for it
            content = next(iter(_reader().load_all(text)), None)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{named}:{mark.line + 1}" if mark is not None else named
        raise InputError(f"{place}: cannot be read: {error.problem or error.context}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{named}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    return content, lines


def _reader() -> Any:
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)  # what PyYAML reads, and with it transformers, TRL and Axolotl
    reader.allow_duplicate_keys = True
    return reader


def _places(
    node: Any, path: tuple[str, ...], lines: dict[tuple[str, ...], tuple[int, str]], text: str, left: list[int]
) -> None:
    """Note where each value stands; what aliases repeat without end is left out."""
    left[0] -= 1
    if left[0] < 0:
        return
    kind = type(node).__name__
    if kind == "MappingNode":
        for key, value in node.value:
            name = (*path, str(key.value))
            lines[name] = (key.start_mark.line + 1, text[value.start_mark.index : value.end_mark.index].strip())
            _places(value, name, lines, text, left)
    elif kind == "SequenceNode":
        for place, value in enumerate(node.value):
            name = (*path, str(place))
            lines[name] = (value.start_mark.line + 1, text[value.start_mark.index : value.end_mark.index].strip())
            _places(value, name, lines, text, left)


_TABLE = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?")
_PAIR = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=\s*(.*)""")


def _toml(text: str, named: str) -> tuple[object, dict[tuple[str, ...], tuple[int, str]]]:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{named}: cannot be read: {error}") from error
    lines: dict[tuple[str, ...], tuple[int, str]] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if (head := _TABLE.fullmatch(line)) is not None:
            table = _parts(head[1])
        elif (pair := _PAIR.match(line)) is not None:
            lines.setdefault((*table, *_parts(pair[1])), (number, pair[2].partition(" #")[0].strip()))
    return content, lines


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def is_list_of(value: object, kind: type) -> bool:
    """Say whether a value is a list that holds nothing but values of a type."""
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(each, kind) for each in value)

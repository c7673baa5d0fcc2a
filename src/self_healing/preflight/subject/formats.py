"""YAML, JSON and TOML as their readers see them, with the line of each key; hostile ones end soon, in one sentence."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from ...core.errors import InputError
from .values import UNKNOWN

DEEPEST = 64
"""Configs are not nested deeper, and the YAML parser takes long for what is."""


class Written(NamedTuple):
    """Where a value stands and how it is written."""

    line: int
    text: str


Places = dict[tuple[str, ...], Written]


# -- YAML --------------------------------------------------------------------------------------------

# What PyYAML takes for what, and with it transformers, TRL and Axolotl: YAML 1.1, where `2e-4` is a text and `on` is true.
_TRUE, _FALSE = frozenset({"yes", "true", "on"}), frozenset({"no", "false", "off"})
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_STANDARD = "tag:yaml.org,2002:"


def read_yaml(text: str, named: str) -> tuple[object, Places]:
    """Return the content of the first document.

    Raises:
        InputError: it is no YAML, or nested without end.

    """
    _refuse_nesting(text, named)
    try:
        root = next(iter(YAML(typ="safe", pure=True).compose_all(text)), None)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{named}:{mark.line + 1}" if mark is not None else named
        raise InputError(f"{place}: cannot be read: {error.problem or error.context}") from error
    except RecursionError as error:
        raise InputError(f"{named}: is nested too deeply to be read") from error
    except (YAMLError, ValueError) as error:
        raise InputError(f"{named}: cannot be read: {' '.join(str(error).split())[:200]}") from error
    reading = _Reading(text, named)
    return (None if root is None else reading.value(root, ())), reading.places


def _refuse_nesting(text: str, named: str) -> None:
    depth = 0
    for found in re.finditer(r"[\[{]|[\]}]|(?m:^[ ]*(?:[-?] +){64})", text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], DEEPEST + 1)
        if depth > DEEPEST:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(f"{named}:{line}: is nested too deeply to be read")
        depth = max(depth, 0)  # a bracket in a text


class _Reading:
    """Makes values of nodes."""

    def __init__(self, text: str, named: str) -> None:
        self.places: Places = {}
        self._text = text
        self._named = named
        self._made: dict[int, object] = {}
        self._open: set[int] = set()

    def value(self, node: Any, path: tuple[str, ...]) -> object:
        """Return what a node stands for."""
        if id(node) in self._open:
            raise InputError(f"{self._named}:{node.start_mark.line + 1}: holds itself by an alias")
        if id(node) in self._made:  # an alias: the same value again
            return self._made[id(node)]
        self._open.add(id(node))
        made: object
        match type(node).__name__:
            case "MappingNode":
                made = self._mapping(node, path)
            case "SequenceNode":
                made = [self._part(each, each, (*path, str(place))) for place, each in enumerate(node.value)]
            case _:
                made = _scalar(node)
        self._open.discard(id(node))
        self._made[id(node)] = made
        return made

    def _mapping(self, node: Any, path: tuple[str, ...]) -> dict[str, object]:
        merged: dict[str, object] = {}
        own: dict[str, object] = {}
        for key, value in node.value:
            if key.tag == f"{_STANDARD}merge" or (key.value == "<<" and not getattr(key, "style", None)):
                for each in value.value if type(value).__name__ == "SequenceNode" else [value]:
                    inner = self.value(each, path)
                    merged |= {name: old for name, old in (inner if isinstance(inner, dict) else {}).items() if name not in merged}  # fmt: skip
            else:
                name = str(_scalar(key)) if type(key).__name__ == "ScalarNode" else "?"
                own[name] = self._part(key, value, (*path, name))
        return merged | own

    def _part(self, key: Any, value: Any, path: tuple[str, ...]) -> object:
        written = self._text[value.start_mark.index : value.end_mark.index].strip()
        self.places[path] = Written(key.start_mark.line + 1, written)
        return self.value(value, path)


def _scalar(node: Any) -> object:
    text, tag = str(node.value), str(node.tag or "")
    if tag.startswith("!") and tag != "!":
        return UNKNOWN  # `!include`, `!ENV`: only the reader that knows it can say
    if getattr(node, "style", None) in ("'", '"', "|", ">") or (
        tag == f"{_STANDARD}str" and text not in _NULL and _is_marked(node)
    ):
        return text
    return plain_yaml(text)


def _is_marked(node: Any) -> bool:
    """Say whether the tag is written, `!!str 1`: then the node is longer than its value."""
    return bool(node.end_mark.index - node.start_mark.index > len(node.value) + 4)


def plain_yaml(text: str) -> object:
    """Return what PyYAML makes of a word without quotes."""
    lowered = text.lower()
    if text in _NULL:
        return None
    if lowered in _TRUE | _FALSE and text in (lowered, lowered.upper(), lowered.capitalize()):
        return lowered in _TRUE
    if lowered in _SPECIAL:
        return _SPECIAL[lowered]
    try:
        if len(text) < 64 and _INT.fullmatch(text):
            return _integer(text.replace("_", ""))
        if len(text) < 64 and _FLOAT.fullmatch(text):
            return float(text.replace("_", ""))
    except ValueError:
        return text
    return text


def _integer(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    base = {"0b": 2, "0x": 16}.get(digits[:2], 8 if digits.startswith("0") and digits != "0" else 10)
    return sign * int(digits[2:] if base in (2, 16) else digits, base)


# -- JSON --------------------------------------------------------------------------------------------

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]+')


def read_json(text: str, named: str) -> tuple[object, Places]:
    """Return the content of a JSON file.

    Raises:
        InputError: it is no JSON.

    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{named}:{error.lineno}: cannot be read: {error.msg}") from error
    except RecursionError as error:
        raise InputError(f"{named}: is nested too deeply to be read") from error
    except ValueError as error:
        raise InputError(f"{named}: cannot be read: {error}") from error
    return content, _json_places(text)


def _json_places(text: str) -> Places:
    """Return where the keys of a text stand that is known to be JSON."""
    ends = [found.start() for found in re.finditer("\n", text)]
    places: Places = {}
    path: list[str] = []
    is_list: list[bool] = []
    key = ""
    key_at = -1
    for token in _JSON_TOKEN.finditer(text):
        word = token[0]
        is_key = bool(is_list) and not is_list[-1] and key_at < 0
        if word in "{[":
            _note(places, path, key_at if key_at >= 0 else token.start(), "", ends)
            is_list.append(word == "[")
            path.append("0" if word == "[" else "")
            key_at = -1
        elif word in "}]":
            is_list.pop()
            path.pop()
            key_at = -1
        elif word == ",":
            key_at = -1
            if is_list[-1]:
                path[-1] = str(int(path[-1]) + 1)
        elif word == ":":
            continue
        elif is_key:
            key, key_at = json.loads(word), token.start()
            path[-1] = str(key)
        else:
            _note(places, path, key_at if key_at >= 0 else token.start(), word, ends)
    return places


def _note(places: Places, path: list[str], at: int, text: str, ends: list[int]) -> None:
    if path:
        places[tuple(path)] = Written(bisect_right(ends, at) + 1, text)


# -- TOML --------------------------------------------------------------------------------------------

_PAIR = re.compile(r"""((?:[\w-]+|"[^"]*+"|'[^']*+')(?:[ \t]*+\.[ \t]*+(?:[\w-]+|"[^"]*+"|'[^']*+'))*+)[ \t]*+=(.*)""")
_LONGEST_LINE = 1000


def read_toml(text: str, named: str) -> tuple[object, Places]:
    """Return the content of a TOML file.

    Raises:
        InputError: it is no TOML.

    """
    try:
        content = tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{named}: is nested too deeply to be read") from error
    except ValueError as error:
        raise InputError(f"{named}: cannot be read: {error}") from error
    places: Places = {}
    table: tuple[str, ...] = ()
    counts: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        plain = line[:_LONGEST_LINE].strip()
        if plain.startswith("["):
            name = _parts(plain.partition("]")[0].strip("[ \t"))
            if plain.startswith("[["):
                counts[name] = counts.get(name, -1) + 1
                name = (*name, str(counts[name]))
            table = name
            places.setdefault(table, Written(number, ""))
        elif (pair := _PAIR.match(plain)) is not None:
            places.setdefault((*table, *_parts(pair[1])), Written(number, pair[2].partition(" #")[0].strip()))
    return content, places


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))


def line_below(places: Mapping[tuple[str, ...], Written], path: tuple[str, ...]) -> Written:
    """Return where a value stands, or the nearest thing around it that has a place."""
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            found = places[path[:length]]
            return found if length == len(path) else Written(found.line, "")
    return Written(0, "")

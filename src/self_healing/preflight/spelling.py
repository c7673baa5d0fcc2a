"""Fixes in the language of the file they are for: `max_length=512` is a line of Python, and no line of YAML."""

from __future__ import annotations

import re
from pathlib import PurePath

from .finding import Place

_GIVEN = re.compile(
    r"""(?<![\w.\-"'/])([a-z_]\w*)=("[^"\n]*"|-?\d[\w.+-]*[\d%]|-?\d|[A-Za-z_]\w*(?![\w(\["]|\.\w)|\.\.\.)""", re.ASCII
)
_NO_POINT = re.compile(r"(-?\d+)(e[+-]?\d+)")
_ASIDE = re.compile(r"`[^`]*`|[(\[{]|[)\]}]")


def spelled_for(where: Place, fix: str) -> str:
    """Return a fix with its `name=value` as the file or command spells them; what stands in brackets or code is kept."""
    kind = PurePath(where.source).suffix.lower() if where.line else ""
    if where.source == "command" and where.key.startswith("--"):
        kind = "command"
    if kind not in (".yaml", ".yml", ".json", ".toml", "command"):
        return fix
    parts, depth, end = [], 0, 0
    for mark in _ASIDE.finditer(fix):
        parts.append(_spelled(kind, fix[end : mark.start()]) if depth == 0 else fix[end : mark.start()])
        parts.append(mark.group())
        depth = max(0, depth + (mark.group() in "([{") - (mark.group() in ")]}"))
        end = mark.end()
    parts.append(_spelled(kind, fix[end:]) if depth == 0 else fix[end:])
    return "".join(parts)


def _spelled(kind: str, text: str) -> str:
    return _GIVEN.sub(lambda found: _pair(kind, found.group(1), found.group(2)), text)


def _pair(kind: str, name: str, value: str) -> str:
    if kind == "command":
        return f"--{name} " + (value if " " in value else value.strip('"'))
    value = {"True": "true", "False": "false", "None": "null"}.get(value, value)
    if kind == ".toml":
        return f"{name} = {value}"
    if kind == ".json":
        return f'"{name}": {value}'
    point = _NO_POINT.fullmatch(value)  # 1e-5 is a text to PyYAML
    return f"{name}: {point[1]}.0{point[2]}" if point else f"{name}: {value}"

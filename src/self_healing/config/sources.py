"""Where a configuration comes from: TOML with line numbers, `--set key=value`, code, and the words of its errors."""

from __future__ import annotations

import difflib
import math
import re
import reprlib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

from ..core.errors import ConfigError
from ..core.secrets import MASK, label_of_url

VERSION = 1
"""The version of what `to_dict` and `to_toml` write, as the key `v`; a newer one is refused."""

RUN = "run"
"""The table of the same file that `heal run` reads."""
CODE = "code"
COMMAND_LINE = "command line"
MAX_FILE_BYTES = 1 << 20

KeyPath = tuple[str, ...]
"""Where a value lives: `("nan_patience",)` or `("rules", "loss-spike", "sigmas")`."""


class Given(NamedTuple):
    """A value somebody set, and the place where it was written."""

    value: Any
    source: str
    """`code`, `command line`, `preset aggressive`, or a file and line such as `healing.toml:7`."""


Found = dict[KeyPath, Given]
"""Everything one source sets, or all of them together, by path."""


# The words of an error


class _Short(reprlib.Repr):
    """A `repr` that is short, never fails, and writes true and false as TOML does."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60

    def repr_int(self, x: int, level: int) -> str:  # reprlib's signature
        digits = int(x.bit_length() * math.log10(2))
        return repr(x) if digits < self.maxlong else f"{'-' if x < 0 else ''}1e{digits}"

    def repr_bool(self, x: bool, level: int) -> str:  # reprlib's signature
        return "true" if x else "false"


def show(value: object) -> str:
    """Return a value as an error shows it: short, escaped, on one line."""
    return " ".join(_Short().repr(value).split())


def label(path: KeyPath) -> str:
    """Return a path as users write it: `nan_patience` or `[rules.loss-spike] sigmas`."""
    return f"[{'.'.join(path[:-1])}] {path[-1]}" if len(path) > 1 else path[0]


def at(source: str) -> str:
    """Return the prefix of an error: the file and line, or nothing where the value came from code."""
    return "" if source == CODE else f"{source}: "


def problem(path: KeyPath, given: Given, text: str) -> str:
    """Return `healing.toml:7: [rules.loss-spike] sigmas = -1: must be greater than 0`."""
    return f"{at(given.source)}{label(path)} = {show(without_secrets(path[0], given.value))}: {text}"


def without_secrets(key: str, value: object) -> object:
    """Return the value of a key as people may see it: addresses that let one in only say where they lead to."""
    if key != "alert_urls":
        return value
    items = value if isinstance(value, list | tuple | set | frozenset) else (value,)
    return [label_of_url(item) if isinstance(item, str) else MASK for item in items]


def suggestion(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the nearest known name, or the list of known ones."""
    names = {item.lower().replace("_", "-"): item for item in known}
    near = difflib.get_close_matches(str(name).lower().replace("_", "-"), names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {names[near[0]]!r}?"
    return f"; known are {', '.join(sorted(names.values()))}" if names else "; there are none"


def refuse(problems: Sequence[str]) -> None:
    """Raise one error with every problem on a line of its own, where there is any."""
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems))) from None


_TEXTS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "none_required": "must be none",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a table",
    "value_error": "{error}",
}


def explain(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what is allowed, in our words, for pydantic's errors about one value."""
    texts: dict[str, None] = {}
    for error in errors:
        limits = {
            key: f"{limit:g}" if isinstance(limit, float) else limit for key, limit in error.get("ctx", {}).items()
        }
        text = _TEXTS[error["type"]].format(**limits) if error["type"] in _TEXTS else error["msg"]
        item = next((f"item {part + 1} " for part in reversed(error["loc"]) if isinstance(part, int)), "")
        texts[item + text] = None
    first, *others = texts
    return " or ".join([first, *(other.removeprefix("must be ") for other in others)])


# One source at a time


def flatten(values: object, known: Iterable[str], source: str, lines: Mapping[KeyPath, int] | None = None) -> Found:
    """Return what one source sets, by path; unknown keys, wrong shapes and a newer `v` are refused."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{at(source)}a configuration is a table of keys, not {show(values)}")
    known = tuple(known)
    problems: list[str] = []
    found: Found = {}

    def place(path: KeyPath) -> str:
        near = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in (lines or {})), None)
        return f"{source}:{lines[near]}" if lines and near else source

    for key, value in values.items():
        where = place((key,))
        if not isinstance(key, str):
            problems.append(f"{at(where)}unknown key {show(key)}; keys must be text")
        elif key == "v":
            problems.extend(_version_problem(value, where))
        elif key == "rules":
            more, wrong = _rule_tables(value, place)
            found.update(more)
            problems.extend(wrong)
        elif key in known:
            found[(key,)] = Given(value, where)
        else:
            hint = (
                f"; options of rules belong in [rules.{key}]" if isinstance(value, Mapping) else suggestion(key, known)
            )
            problems.append(f"{at(where)}unknown key {show(key)}{hint}")
    refuse(problems)
    return found


def _version_problem(value: object, where: str) -> Iterable[str]:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        yield f"{at(where)}v = {show(value)}: must be {VERSION}"
    elif value > VERSION:
        yield (
            f"{at(where)}v = {show(value)}: written by a newer self-healing-training; "
            f"this one reads v = {VERSION}, so update it"
        )


def _rule_tables(tables: object, place: Any) -> tuple[Found, list[str]]:
    """Split `{"loss-spike": {"sigmas": 8}}` into paths; an empty table keeps the path of its rule."""
    where = at(place(("rules",)))
    if not isinstance(tables, Mapping):
        return {}, [f"{where}rules = {show(tables)}: must be a table of rules, each a table of its options"]
    found: Found = {}
    problems = []
    for rule, options in tables.items():
        if not isinstance(rule, str):
            problems.append(f"{where}[rules] unknown rule {show(rule)}; rule names must be text")
        elif not isinstance(options, Mapping):
            text = "must be a table of the rule's options"
            problems.append(f"{at(place(('rules', rule)))}[rules] {rule} = {show(options)}: {text}")
        elif not options:
            found["rules", rule] = Given({}, place(("rules", rule)))
        else:
            for option, value in options.items():
                path = ("rules", rule, option)
                if isinstance(option, str):
                    found[path] = Given(value, place(path))
                else:
                    problems.append(f"{where}[rules.{rule}] unknown key {show(option)}; keys must be text")
    return found, problems


def read_toml(path: str | PathLike[str], known: Iterable[str]) -> Found:
    """Return what a TOML file sets, each value with its file and line; `[run]` is for `heal run` alone."""
    name, values, lines = _parsed(path)
    return flatten({key: value for key, value in values.items() if key != RUN}, known, name, lines)


def read_run_table(path: str | PathLike[str], known: Iterable[str]) -> Found:
    """Return what `[run]` in a TOML file sets, each value with its file and line."""
    name, values, lines = _parsed(path)
    return flatten(
        values.get(RUN, {}), known, name, {key[1:]: line for key, line in lines.items() if key[0] == RUN and key[1:]}
    )


def _parsed(path: str | PathLike[str]) -> tuple[str, dict[str, Any], dict[KeyPath, int]]:
    name = " ".join(str(path).split())
    text = _read_text(path, name)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        words, line = str(error), len(text.splitlines()) or 1
        if found := re.search(r" \(at line (\d+), column \d+\)$", words):
            words, line = words[: found.start()], int(found[1])
        words = words.removesuffix(" (at end of document)")
        raise ConfigError(f"{name}:{line}: not valid TOML: {words[:1].lower()}{words[1:]}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, thousands of nested brackets
        raise ConfigError(f"{name}: not valid TOML: a number is too long or lists are nested too deeply") from None
    return name, values, _line_numbers(text)


def _read_text(path: str | PathLike[str], name: str) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # bytes, str and PathLike alike
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{name}: cannot be read: larger than {MAX_FILE_BYTES} bytes, so hardly a configuration")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not valid TOML: not UTF-8 text") from None


_TOKEN = re.compile(
    r"""
    \"{3} (?: \\. | [^\\] )*? \"{3,5}  |  '{3} .*? '{3,5}   # strings of several lines
    | \" (?: \\. | [^"\\\n] )* \"  |  ' [^'\n]* '         # strings of one
    | \# [^\n]*  |  [\[\]{}\n]                             # comments, brackets, ends of lines
    """,
    re.DOTALL | re.VERBOSE,
)
_KEY = re.compile(r"""\s*((?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[\w.\s-])+?)\s*=""")


def _line_numbers(text: str) -> dict[KeyPath, int]:
    """Return the line of every table and key of valid TOML; keys inside a value share the line it starts on."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, statement in _statements(text):
        if statement.startswith("["):
            table = _only_path(tomllib.loads(statement))
            lines.setdefault(table, line)
        elif key := _KEY.match(statement):
            path = table + _only_path(tomllib.loads(f"{key[1]} = 0"))
            for end in range(len(path), 0, -1):
                lines.setdefault(path[:end], line)
    return lines


def _statements(text: str) -> Iterable[tuple[int, str]]:
    """Yield each table header and each key with its value, with the line it starts on."""
    depth = start = counted = 0
    line = 1
    for token in _TOKEN.finditer(text + "\n"):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and depth == 0:
            statement = text[start : token.start()]
            begun = token.start() - len(statement.lstrip())
            line += text.count("\n", counted, begun)
            yield line, statement.strip()
            counted, start = begun, token.end()


def _only_path(table: object) -> KeyPath:
    """Return the path of the only entry of nested tables: `{"rules": {"x": {}}}` is `("rules", "x")`."""
    path: KeyPath = ()
    while table and isinstance(table, dict | list):
        if isinstance(table, list):
            table = table[0]
            continue
        key, table = next(iter(table.items()))
        path += (key,)
    return path


_BARE_WORD = re.compile(r"[A-Za-z_][\w.:/-]*")


def read_overrides(overrides: Iterable[str], known: Iterable[str]) -> Found:
    """Return what `key=value` strings set; a later one wins over an earlier one."""
    known = tuple(known)
    found: Found = {}
    for text in (overrides,) if isinstance(overrides, str) else overrides:
        key, equals, raw = (part.strip() for part in text.partition("="))
        if not (key and equals):
            raise ConfigError(f"{COMMAND_LINE}: {show(text)}: must be written key=value")
        values: object = _override_value(key, raw)
        for part in reversed(key.split(".", maxsplit=2) if key.startswith("rules.") else [key]):
            values = {part: values}
        found.update(flatten(values, known, COMMAND_LINE))
    return found


def _override_value(key: str, raw: str) -> object:
    if raw == "none":
        return None
    try:
        values = tomllib.loads(f"value = {raw}")
        if list(values) == ["value"]:
            return values["value"]
    except (ValueError, RecursionError):
        if _BARE_WORD.fullmatch(raw):
            return raw
    raise ConfigError(
        f"{COMMAND_LINE}: {key} = {show(without_secrets(key, raw))}: must be a TOML value, or a bare word for text"
    )

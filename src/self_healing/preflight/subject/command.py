"""A command line as its parts: the launcher, the script, and the settings it gives."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from ...supervisor.torchrun import Launcher, launcher_of

_FLAG = re.compile(r"--?([A-Za-z_][\w.-]*)(?:=(.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
TRL_METHODS = frozenset({"sft", "dpo", "grpo", "kto", "reward", "rloo"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag or override of a command."""

    key: str
    """As it is written: `--learning_rate`, `training.lr`."""
    name: str
    """Without dashes, with underscores: `learning_rate`, `training.lr`."""
    text: str
    """Its value as it is written; empty for a switch."""

    @property
    def value(self) -> object:
        """Its value, as a program that reads numbers and truth values sees it."""
        return read_value(self.text) if self.text else True


@dataclass(frozen=True, slots=True)
class Command:
    """A command line."""

    argv: tuple[str, ...]
    launcher: Launcher | None
    script: str | None
    """The Python script that is run, as it is named."""
    flags: tuple[Flag, ...] = field(default=())
    """Those of the script; of a flag that is given twice the last counts."""
    launcher_flags: tuple[Flag, ...] = field(default=())
    method: str = ""
    """Of TRL's own command line: `sft`, `dpo`, ..."""

    def flag(self, *names: str) -> Flag | None:
        """Return the flag of one of the names."""
        return next((flag for flag in reversed(self.flags) if flag.name in names), None)


def read_command(argv: Sequence[str]) -> Command:
    """Take a command line apart."""
    script_at = next((at for at, word in enumerate(argv) if word.endswith(".py") and not word.startswith("-")), None)
    method = ""
    for at, word in enumerate(argv[:-1]):
        if PurePath(word).name == "trl" and argv[at + 1] in TRL_METHODS:
            method, script_at = argv[at + 1], at + 1
    split = len(argv) if script_at is None else script_at + 1
    if script_at is None and len(argv) > 1:
        split = 1
    script = argv[script_at] if script_at is not None and not method else None
    return Command(
        argv=tuple(argv), launcher=launcher_of(argv), script=script, flags=tuple(_flags(argv[split:])),
        launcher_flags=tuple(_flags(argv[:split])), method=method,
    )  # fmt: skip


def _flags(words: Sequence[str]) -> list[Flag]:
    found: list[Flag] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (flag := _FLAG.fullmatch(word)) is not None and not _is_number(word):
            text = flag[2]
            if text is None:
                has_value = at < len(words) and (not words[at].startswith("-") or _is_number(words[at]))
                text = words[at] if has_value else ""
                at += has_value
            found.append(Flag(word.partition("=")[0], flag[1].replace("-", "_"), text))
        elif (override := _OVERRIDE.fullmatch(word)) is not None:
            found.append(Flag(override[1], override[1].replace("-", "_"), override[2]))
    return found


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_value(text: str) -> object:
    """Return what a word of a command stands for: a number, a truth value, nothing, or itself."""
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in known:
        return known[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    if text[:1] in "[{(" and len(text) < 10_000:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
    return text

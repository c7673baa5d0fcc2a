"""The commands that a script starts: by `subprocess`, `os.system`, or a function of its own around them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from .subject import UNKNOWN, Call, Script
from .syntax import syntax_of

STARTERS = frozenset({"run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput"})
_BETWEEN = frozenset({"&&", "||", ";", "|", "&", "(", ")"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*")
_PREFIXES = frozenset({"sudo", "env", "time", "nice", "exec"})


@dataclass(frozen=True, slots=True)
class Started:
    """One call that starts commands."""

    call: Call
    how: str
    """`run`, `check_output`, ..., `system`; `own` for a function of the script."""
    programs: tuple[tuple[str, ...], ...]
    """The commands as words; a word that is not known is `?`."""
    text: str
    """All of it, for messages."""

    @property
    def first(self) -> str:
        """The name of the first program, without its folder; empty where it is not known."""
        name = name_of(self.programs[0]) if self.programs else ""
        return name if name != "?" else ""


def name_of(words: Sequence[str]) -> str:
    """Return the name of the program of a command."""
    return words[0].rpartition("/")[2] if words else ""


def started_by(script: Script) -> tuple[Started, ...]:
    """Return the calls of a script that start commands, in the order of the text."""
    remembered = syntax_of(script).remembered
    if "started" not in remembered:
        remembered["started"] = tuple(_started(script))
    return cast("tuple[Started, ...]", remembered["started"])


def _started(script: Script) -> Iterator[Started]:
    own = _own_starters(script)
    for call in script.calls:
        how = _how(call, own)
        if not how:
            continue
        given = call.given(0, "args" if how not in ("system", "own") else "command")
        value = given.value if given is not None else UNKNOWN
        if how == "own" and not _is_command(value):
            continue
        programs = tuple(tuple(words) for words in _programs(value))
        yield Started(call, how, programs, "; ".join(" ".join(words) for words in programs))


def _how(call: Call, own: frozenset[str]) -> str:
    if call.name == "os.system":
        return "system"
    if call.name.startswith("subprocess.") and call.last in STARTERS:
        return call.last
    return "own" if call.name in own else ""


def _own_starters(script: Script) -> frozenset[str]:
    """Return the functions of a script that start a command they are given."""
    syntax = syntax_of(script)
    found = set()
    for call in script.calls:
        function = syntax.scope(call.node)
        if call.name.startswith(("subprocess.", "os.system")) and not isinstance(function, ast.Module):
            used = {each.id for each in ast.walk(call.node) if isinstance(each, ast.Name)}
            if used & {each.arg for each in (*function.args.posonlyargs, *function.args.args)}:
                found.add(function.name)
    return frozenset(found)


def _is_command(value: object) -> bool:
    if isinstance(value, str):
        return " " in value.strip()
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str)


def _programs(value: object) -> Iterator[list[str]]:
    if isinstance(value, list | tuple):
        words = [each if isinstance(each, str) else "?" for each in value]
        if len(words) >= 3 and name_of(words) in ("bash", "sh") and words[1] in ("-c", "-lc"):
            yield from _programs(words[2])
        elif words:
            yield _plain(words)
    elif isinstance(value, str):
        yield from (words for words in map(_plain, _parts(value)) if words)


def _parts(text: str) -> Iterator[list[str]]:
    """Yield the commands of a shell line."""
    for line in text.replace("\\\n", " ").split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quote that is not closed
            words = line.split()
        part: list[str] = []
        for word in (*words, ";"):
            if word in _BETWEEN:
                if part:
                    yield part
                part = []
            else:
                part.append(word)


def _plain(words: list[str]) -> list[str]:
    while words and (words[0] in _PREFIXES or _ASSIGNMENT.fullmatch(words[0])):
        words = words[1:]
    return words


def installs_by_pip(script: Script) -> tuple[list[str], bool]:
    """Return what a script installs itself, and whether there may be more (`-r requirements.txt`, what is not known)."""
    names: list[str] = []
    may_be_more = False
    for started in started_by(script):
        for words in started.programs:
            if "install" not in words or not any(name_of([word]) in ("pip", "pip3", "uv") for word in words):
                continue
            after = words[words.index("install") + 1 :]
            may_be_more |= any(
                word in ("-r", "--requirement", "?", "-e", ".") or word.startswith(("-r", "./")) for word in after
            )
            names += [word for word in after if not word.startswith("-")]
        if not started.programs and "pip" in started.call.name:
            may_be_more = True
    return names, may_be_more


_QUESTIONS = frozenset(
    """
    which hostname uname nvidia-smi rocm-smi nvcc df free du ls cat id whoami lscpu echo date env printenv true false pwd tput stty clear
    test ps pgrep lsof ulimit getconf rm rmdir kill pkill sync sleep
    """.split()
)
"""Commands that only ask, or that may fail without harm."""
_GIT_WORK = frozenset({"clone", "pull", "push", "checkout", "submodule", "fetch", "commit"})


def only_asks(started: Started) -> bool:
    """Say whether a command only asks something (`nvidia-smi`, `git rev-parse`), so that its failure costs nothing."""
    return bool(started.programs) and all(_asks(words) for words in started.programs)


def _asks(words: Sequence[str]) -> bool:
    name = name_of(words)
    if name == "git":
        return not _GIT_WORK & set(words)
    if name in ("pip", "pip3", "uv", "conda") or (len(words) > 2 and words[1:3] == ("-m", "pip")):
        return not {"install", "sync"} & set(words)
    return name in _QUESTIONS or words[1:] in (("--version",), ("-V",), ("--help",)) or name == "cd"

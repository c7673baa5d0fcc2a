"""The commands that a script starts: by `subprocess`, `os.system`, or a function of its own around them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ..subject import UNKNOWN, Call, Script
from ..subject.shell_words import shell_commands
from .syntax import syntax_of

STARTERS = frozenset({"run", "call", "check_call", "check_output", "Popen", "getoutput", "getstatusoutput"})
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
        if how == "own":
            value = own[call.name].command_of(call)
            if not _is_command(value):
                continue
        else:
            given = call.given(0, "args" if how != "system" else "command")
            value = given.value if given is not None else UNKNOWN
        programs = tuple(tuple(words) for words in _programs(value))
        yield Started(call, how, programs, "; ".join(" ".join(words) for words in programs))


def _how(call: Call, own: Mapping[str, _Own]) -> str:
    if call.name == "os.system":
        return "system"
    if call.name.startswith("subprocess.") and call.last in STARTERS:
        return call.last
    return "own" if call.name in own else ""


@dataclass(frozen=True, slots=True)
class _Own:
    """A function of the script that starts a command it is given."""

    place: int
    """Of the argument that is the command, or its first word."""
    name: str
    takes_words: bool
    """`def sh(*words)`: each argument is a word."""
    before: tuple[str, ...] = ()
    """The words that it sets in front: `["git", *words]`."""

    def command_of(self, call: Call) -> object:
        """Return the command that a call of it starts."""
        if self.takes_words:
            words = [value.value for value in call.arguments[self.place :]]
            if len(words) == 1 and not self.before and (isinstance(words[0], list | tuple) or _is_line(words[0])):
                return words[0]
            return [*self.before, *words]
        given = call.given(self.place, self.name)
        value = given.value if given is not None else UNKNOWN
        return [*self.before, *value] if self.before and isinstance(value, list | tuple) else value


def _own_starters(script: Script) -> dict[str, _Own]:
    """Return the functions of a script that start a command they are given, by the names they are called by."""
    syntax = syntax_of(script)
    found: dict[str, _Own] = {}
    for call in script.calls:
        function = syntax.scope(call.node)
        if isinstance(function, ast.Module) or _how(call, {}) == "":
            continue
        written = call.node.args[0] if call.node.args else next((each.value for each in call.node.keywords if each.arg == "args"), None)  # fmt: skip
        used = {each.id for each in ast.walk(written) if isinstance(each, ast.Name)} if written is not None else set()
        is_method = isinstance(syntax.parent(function), ast.ClassDef)
        is_static = any(getattr(each, "id", "") == "staticmethod" for each in function.decorator_list)
        named = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][is_method and not is_static :]
        before = tuple(_first_words(written))
        rest = function.args.vararg
        own = next((_Own(place, name, False, before) for place, name in enumerate(named) if name in used), None)
        if rest is not None and rest.arg in used:
            own = _Own(len(named), rest.arg, True, before)
        if own is not None:
            for name in (f"self.{function.name}", f"cls.{function.name}") if is_method else (function.name,):
                found[name] = own
    return found


def _first_words(node: ast.expr | None) -> Iterator[str]:
    """Yield the words that stand at the front of a command whatever is put behind them."""
    if isinstance(node, ast.BinOp):
        node = node.left
    for each in node.elts if isinstance(node, ast.List | ast.Tuple) else ():
        if not isinstance(each, ast.Constant) or not isinstance(each.value, str):
            return
        yield each.value


def _is_line(value: object) -> bool:
    return isinstance(value, str) and " " in value.strip()


def _is_command(value: object) -> bool:
    """Say whether something reads as a command: a line, or words of which some are known (the first may be `sys.executable`)."""
    return _is_line(value) or (isinstance(value, list | tuple) and any(isinstance(each, str) for each in value))


def _programs(value: object) -> Iterator[list[str]]:
    if isinstance(value, list | tuple):
        words = [each if isinstance(each, str) else "?" for each in value]
        if len(words) >= 3 and name_of(words) in ("bash", "sh") and words[1] in ("-c", "-lc"):
            yield from _programs(words[2])
        elif words:
            yield _plain(words)
    elif isinstance(value, str):
        yield from (words for words in map(_plain, shell_commands(value)) if words)


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


TELLERS = frozenset("hostname uname nvidia-smi rocm-smi nvcc df free du ls cat lscpu env printenv ps lsof".split())
"""Commands whose output is the answer; of others that ask it is the exit code."""
_QUESTIONS = TELLERS | frozenset(
    "which id whoami echo date true false pwd tput stty clear test pgrep ulimit getconf rm rmdir kill pkill sync sleep".split()
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

"""What stands in a command: its script, its flags, its `key=value` overrides."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...core.errors import ConfigError
from .numbers import number_of
from .setting import COMMAND_LINE, Entry, InCommand, canonical

_INTERPRETER = re.compile(r"(?:python[\d.]*+|pypy[\d.]*+|torchrun|accelerate|deepspeed)(?:\.exe)?")
_LAUNCHING_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed")
_FLAG = re.compile(r"--?([A-Za-z_][\w.-]*+)(=?)(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w./@$-]*+)=(.*)", re.DOTALL)
_SWEEP = re.compile(r"(?:choice|range|interval|glob|shuffle|sort)\s*\(")


def script_index(argv: Sequence[str]) -> int:
    """Return which argument is the script or module that is trained with; 0 where only the program itself can be."""
    for index, argument in enumerate(argv):
        before = argv[index - 1] if index else ""
        if before == "-c":
            return index
        if before == "-m" and argument not in _LAUNCHING_MODULES:
            return index
        if argument.endswith(".py") and not argument.startswith("-"):
            return index
    return 0


def check_command(argv: Sequence[str], cwd: Path, environ: Mapping[str, str]) -> None:
    """Raise ConfigError where a command cannot be started: no such program, or no such script."""
    program = argv[0]
    if "/" in program:
        path = cwd / program
        if not path.is_file():
            raise ConfigError(f"{program}: there is no such command; check its path, which is seen from {cwd}")
        found: str | None = shutil.which(str(path))
        if found is None:
            raise ConfigError(f"{program}: is not executable; make it so with chmod +x, or start it with python")
    elif not program or shutil.which(program, path=environ.get("PATH")) is None:
        raise ConfigError(f"{program or repr(program)}: there is no such command; check its name and PATH")
    script = argv[script_index(argv)]
    is_launched = _INTERPRETER.fullmatch(Path(program).name) and script_index(argv) and script.endswith(".py")
    if is_launched and not (cwd / script).is_file():
        raise ConfigError(f"{script}: there is no such script; check its path, which is seen from {cwd}")


def command_entries(argv: Sequence[str], first_override: int | None = None) -> list[Entry]:
    """Return the flags and overrides of a command that have a value; of one that is given twice the last.

    Overrides are looked for behind the script, or from `first_override` on.
    """
    start = script_index(argv) + 1 if first_override is None else first_override
    found: dict[tuple[str, ...], Entry] = {}
    for index, argument in enumerate(argv):
        entry = None
        if index and (flag := _FLAG.fullmatch(argument)):
            entry = _of_flag(argv, index, flag)
        elif index >= start and (override := _OVERRIDE.fullmatch(argument)):
            entry = _of_override(index, override)
        if entry is not None:
            found.pop(entry.path, None)
            found[entry.path] = entry
    return list(found.values())


def _of_flag(argv: Sequence[str], index: int, flag: re.Match[str]) -> Entry | None:
    key = flag[0][: flag.start(2)] if flag[2] else flag[0]
    path = tuple(canonical(part) for part in flag[1].split("."))
    text = flag[3]
    place = InCommand(index, before=f"{key}=")
    problem = fatal = ""
    following = index + 1
    if not flag[2]:
        text = argv[following] if following < len(argv) and not _is_flag(argv[following]) else ""
        place = InCommand(following) if text else place
        following += 1
    if not text:
        fatal = "has no value; give it one"
    if following < len(argv) and number_of(text) is not None and number_of(argv[following]) is not None:
        problem = "is followed by several numbers"
    return Entry(
        key=key,
        path=path,
        value=_value(text),
        where=COMMAND_LINE,
        place=place,
        is_flag=True,
        problem=problem,
        fatal=fatal,
    )


def _is_flag(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and number_of(argument) is None


def _of_override(index: int, override: re.Match[str]) -> Entry:
    plus, key, text = override.groups()
    quote = text[0] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else ""
    inner = text[1:-1] if quote else text
    fatal = ""
    if not text:
        fatal = "has no value; give it one"
    elif not quote and is_sweep(text):
        fatal = f"= {text} asks for a sweep of several runs, but heal run supervises one; give it one value"
    return Entry(
        key=key,
        path=tuple(canonical(part) for part in key.split(".")),
        value=_value(inner),
        where=COMMAND_LINE,
        place=InCommand(index, before=f"{plus}{key}={quote}", after=quote, is_override=True),
        problem="holds a list or a table" if not quote and text[:1] in ("[", "{") else "",
        fatal=fatal,
    )


def _value(text: str) -> int | float | str:
    number = number_of(text)
    return text if number is None else number


def is_sweep(text: str) -> bool:
    """Say whether a value of an override asks Hydra for several runs: `1e-3,1e-4`, `choice(1,2)`, `range(1,5)`."""
    if _SWEEP.match(text):
        return True
    depth, quote = 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            return True
    return False

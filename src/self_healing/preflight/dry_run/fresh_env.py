"""A Python of its own for a trial, with what the script's header names and nothing else."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from textwrap import shorten

from ...core.failure import Severity
from ..check import CannotRun
from ..finding import Finding, Place
from ..subject import Command, Script, Subject
from .trying import Bench, Trial

NAME = "fresh-env"
INSTALL_S = 1800.0
_NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Failed to establish a new connection|ConnectTimeoutError"
    r"|Network is unreachable|dns error|ProxyError|error sending request|the network was disabled"
)


_NOT_FETCHED = "what the header names cannot be fetched: there is no network"
_OF_UV = re.compile(
    r"(?m)^\W*(?:(?:error|cause): )?(?:No solution found|Failed to (?:fetch|download|build|resolve|prepare))"
    r"|^error: (?:TOML parse error|No interpreter found|Request failed after)"
)


class NotInstalled(Exception):
    """What the header names cannot be installed."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class FreshPython:
    """How a command is run with it."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    python: str | None
    """None where uv makes it at the start of the command."""


def fresh_python(bench: Bench, subject: Subject) -> FreshPython:
    """Make an environment of a script's header; it goes with the bench.

    Raises:
        CannotRun: there is no header, or no network.
        NotInstalled: something in the header is wrong.

    """
    command = subject.command
    script = next((each for each in subject.scripts if command is not None and each.named == command.script), None)
    if command is None or script is None or script.header is None:
        raise CannotRun("--fresh-env needs a script with a PEP 723 header (# /// script ... # ///), and there is none")
    wanted = _dependencies(script)
    uv = shutil.which("uv", path=bench.environ.get("PATH"))
    is_plain = PurePath(command.argv[0]).name.startswith(("python", "uv"))
    if uv is not None and is_plain:
        at = command.argv.index(script.named)
        return FreshPython((uv, "run", "--script", *command.argv[at:]), {"PYTHONPATH": ""}, None)
    return _made(bench, command, script, wanted)


def _dependencies(script: Script) -> list[str]:
    try:
        found = tomllib.loads(script.header or "").get("dependencies", [])
    except tomllib.TOMLDecodeError as error:
        raise NotInstalled(
            _finding(script, f"the header of {script.named} is no TOML: {error}", "Mend it, or run `heal check --fix`")
        ) from error
    return [str(each) for each in found]


def _made(bench: Bench, command: Command, script: Script, wanted: Sequence[str]) -> FreshPython:
    folder = bench.folder / "environment"
    python = str(folder / "bin" / "python")
    environ = {
        "VIRTUAL_ENV": str(folder), "PYTHONPATH": "",
        "PATH": os.pathsep.join([str(folder / "bin"), bench.environ.get("PATH", os.defpath)]),
    }  # fmt: skip
    # Ours installs into it where there is one: to put a pip into the new environment takes longer than all else.
    has_pip = importlib.util.find_spec("pip") is not None
    words = [sys.executable, "-m", "venv", *(["--without-pip"] if has_pip else []), str(folder)]
    made = bench.try_out(words, environ={"PYTHONPATH": ""}, seconds=INSTALL_S)
    if made.outcome.attempt.status != 0:
        raise CannotRun(f"no virtual environment can be made: {' '.join(made.last_lines()[-1:])}")
    if wanted:
        pip = [sys.executable, "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
        words = [*pip, "install", "--disable-pip-version-check", "--no-input", *wanted]
        done = bench.try_out(words, environ=environ, seconds=INSTALL_S)
        if done.outcome.attempt.status != 0:
            text = "\n".join(done.last_lines())
            if _NO_NETWORK.search(done.log.read_text(encoding="utf-8", errors="replace")):
                raise CannotRun(_NOT_FETCHED)
            reason = next((line for line in reversed(text.split("\n")) if line.startswith("ERROR:")), text[-300:])
            raise NotInstalled(
                _finding(
                    script, f"what the header of {script.named} names cannot be installed: {reason}",
                    f"Correct the names and versions in the header until this works: pip install {' '.join(wanted)}",
                )
            )  # fmt: skip
    first = python if PurePath(command.argv[0]).name.startswith("python") else command.argv[0]
    return FreshPython((first, *command.argv[1:]), environ, python)


def look_at_uv(trial: Trial, subject: Subject) -> None:
    """Tell a failure of uv, which makes the environment as the command starts, from one of the command.

    Raises:
        CannotRun: there is no network.
        NotInstalled: something in the header is wrong.

    """
    text = trial.log.read_text(encoding="utf-8", errors="replace")
    found = _OF_UV.search(text)
    if found is None or trial.events.all:
        return
    if _NO_NETWORK.search(text):
        raise CannotRun(_NOT_FETCHED)
    script = next(each for each in subject.scripts if each.header is not None)
    raise NotInstalled(
        _finding(
            script, f"what the header of {script.named} names cannot be installed: {_in_a_line(text[found.start() :])}",
            f"Correct the names and versions in the header until this works: uv sync --script {script.named}",
        )
    )  # fmt: skip


def _in_a_line(said: str) -> str:
    """Return what uv says as one line, without the arrows and carets that it draws."""
    lines = (re.sub(r"^(?:\W|cause: |error: )+", "", line).strip() for line in said.split("\n"))
    return shorten(" ".join(filter(None, lines)), 400)


def _finding(script: Script, message: str, fix: str) -> Finding:
    where = Place(script.named, script.header_line)
    return Finding(check=NAME, severity=Severity.ERROR, where=where, message=message, fix=fix)

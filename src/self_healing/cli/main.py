"""The entry point of `heal`: finds its commands, turns errors into one sentence, and decides the exit code.

0 nothing wrong, 1 incidents found, 2 bad usage or input.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from .. import __version__
from ..core.errors import ConfigError, SelfHealingError
from ..core.secrets import strip_control
from . import commands
from .output import leave_the_pipe

LOG_LEVEL = "SELF_HEALING_LOG_LEVEL"
BAD_INPUT = 2

# Newer typers carry click inside them; its base class of errors is public only through this one.
_UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"heal {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[  # its callback does the work
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[  # read before the command line is parsed, so that it may stand anywhere
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere in the command.")
    ] = False,
) -> None:
    """Find out what ails a training run, what would be done about it, and why.

    Exit codes: 0 nothing wrong, 1 incidents found, 2 bad usage or input.
    """


def build_app() -> typer.Typer:
    """Return the command line with every command found in `cli/commands`."""
    app = typer.Typer(
        name="heal", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, callback=_root
    )
    for found in sorted(pkgutil.iter_modules(commands.__path__), key=lambda module: module.name):
        module = importlib.import_module(f"{commands.__name__}.{found.name}")
        app.command(found.name.replace("_", "-"), context_settings=getattr(module, "CONTEXT", None))(module.command)
    return app


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = list(sys.argv[1:] if args is None else args)
    debug, given = _split_debug(given)
    _have_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that knows few characters must not end a command
            stream.reconfigure(errors="replace")
    try:
        _set_up_logging(os.environ.get(LOG_LEVEL, ""))
        command = typer.main.get_command(build_app())
        code = command.main(_with_separator(given) or ["--help"], prog_name="heal", standalone_mode=False)
    except KeyboardInterrupt:
        return 130
    except typer.Abort:
        return 130
    except _UsageProblem as error:
        sentence = cast("typer.BadParameter", error).format_message().rstrip(".")
        return _fail(f"{sentence}; see 'heal --help'", debug=debug)
    except SelfHealingError as error:
        return _fail(str(error), debug=debug)
    except Exception as error:  # noqa: BLE001  # the last fence: a bug is one sentence too, unless --debug is given
        return _fail(f"internal error, {type(error).__name__}: {error}; --debug shows where", debug=debug)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        leave_the_pipe()
    return code if isinstance(code, int) else 0


def _have_standard_streams() -> None:
    """Let nothing stand where a standard stream is closed (`>&-`): a file that is opened next would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            made = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(made, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _split_debug(args: list[str]) -> tuple[bool, list[str]]:
    """Take `--debug` out of the arguments wherever it stands, except behind `--`."""
    end = args.index("--") if "--" in args else len(args)
    kept = [arg for arg in args[:end] if arg != "--debug"]
    return len(kept) < end, kept + args[end:]


def _with_separator(args: list[str]) -> list[str]:
    """Have `--` reach the commands that tell by it what stands before and behind it: the parser takes one away."""
    if args[:1] != ["check"] or "--" not in args:
        return args
    place = args.index("--")
    return [*args[:place], "--", *args[place:]]


def _fail(sentence: str, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    one_line = " ".join(strip_control(sentence).split())
    with contextlib.suppress(OSError):
        print(f"heal: {one_line}", file=sys.stderr)
    return BAD_INPUT


def _set_up_logging(level: str) -> None:
    name = level.strip().upper() or "WARNING"
    known = logging.getLevelNamesMapping()
    if name not in known:
        raise ConfigError(f"{LOG_LEVEL} = {level!r} in the environment: must be one of debug, info, warning, error")
    logger = logging.getLogger("self_healing")
    logger.setLevel(known[name])
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(_OneLine("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


class _OneLine(logging.Formatter):
    """Log records whose text cannot move the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text without control characters."""
        return strip_control(super().format(record))

"""The check `command-output-dropped`: commands whose error messages nobody will ever see."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.script_commands import TELLERS, Started, only_asks, started_by
from ..scripts.syntax import Syntax, syntax_of
from ..subject import Script, Subject
from ..tools import Tools

_RUN = "import subprocess\n"
_BUILD = "['cmake', '--build', 'build']"
_OUTPUTS = frozenset({"stderr", "stdout", "output", "communicate", "check_returncode", "args"})


class CommandOutputDropped(Check):
    """What a command prints when it fails can be seen.

    With `capture_output=True` its messages go into an object. `check=True` raises `CalledProcessError: Command '['cmake', ...]'
    returned non-zero exit status 1` without them, and the reason is lost with the container.
    """

    passes = (
        Example(_RUN + f"subprocess.run({_BUILD}, check=True)\n"),
        Example(
            _RUN + f"try:\n    subprocess.run({_BUILD}, check=True, capture_output=True, text=True)\n"
            "except subprocess.CalledProcessError as error:\n    print(error.stdout, error.stderr)\n    raise\n"
        ),
        Example(
            _RUN + f"done = subprocess.run({_BUILD}, capture_output=True, text=True)\n"
            "if done.returncode:\n    raise RuntimeError(done.stderr)\n"
        ),
        Example(_RUN + "head = subprocess.run(['git', 'rev-parse', 'HEAD'], check=True, capture_output=True, text=True).stdout\n"),
        Example(_RUN + "subprocess.run(['which', 'cmake'], check=True, capture_output=True)\n"),
    )  # fmt: skip
    fails = (
        Example(_RUN + f"subprocess.run({_BUILD}, check=True, capture_output=True)\n"),
        Example(_RUN + f"done = subprocess.run({_BUILD}, capture_output=True)\nif done.returncode != 0:\n    raise SystemExit(1)\n"),
        Example(_RUN + f"subprocess.run({_BUILD}, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"),
        Example(_RUN + "subprocess.run(['nvidia-smi'], check=True, capture_output=True)\n"),
        Example(_RUN + f"job = subprocess.Popen({_BUILD}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\njob.wait()\n"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what becomes of captured output."""
        for script in subject.scripts:
            syntax = syntax_of(script)
            if _handler_shows(syntax):  # somewhere an exception's output is printed: it may be that of any command
                continue
            for started in started_by(script):
                if started.how in ("own", "system") or not _hides(started):
                    continue
                if only_asks(started) and not _asks_for_nobody(syntax, started):
                    continue
                if not _is_seen(syntax, started):
                    yield self._finding(script, started)

    def _finding(self, script: Script, started: Started) -> Finding:
        where = Place(script.named, started.call.line)
        what = f"{started.first or 'the command'}: its error messages are kept and never shown"
        if started.how == "Popen":
            return self.warning(
                where, f"{what}; it also stops for ever once it has printed 64 KiB that nobody reads",
                "Leave stdout= and stderr= out, so that it prints to the log, or read it:\nout, err = process.communicate()\nprint(out, err)",
            )  # fmt: skip
        return self.warning(
            where, what,
            "Leave capture_output, stdout= and stderr= out, so that it prints to the log, or show them when it fails:\n"
            "try:\n    subprocess.run(..., check=True, capture_output=True, text=True)\n"
            "except subprocess.CalledProcessError as error:\n    print(error.stdout, error.stderr)\n    raise",
        )  # fmt: skip


def _hides(started: Started) -> bool:
    """Say whether what goes to standard error does not reach the log."""
    given = started.call.keywords
    captures = given.get("capture_output")
    if captures is not None and captures.value is True:
        return True
    errors = given["stderr"].text if "stderr" in given else ""
    output = given["stdout"].text if "stdout" in given else ""
    into_output = errors.endswith("STDOUT") and (output.endswith(("PIPE", "DEVNULL")) or started.how == "check_output")
    if started.how == "Popen":  # what goes on beside the script may be silenced on purpose
        return errors.endswith("PIPE")
    return errors.endswith(("PIPE", "DEVNULL")) or into_output


def _is_seen(syntax: Syntax, started: Started) -> bool:
    call = started.call.node
    raises = _raises(started)
    kept = syntax.kept_as(call)
    if kept:
        looked, is_handed_on = syntax.attributes_of(kept, syntax.scope(call))
        if is_handed_on:
            return True
        return bool(looked & (_OUTPUTS - {"args"})) and not (
            raises and "stderr" not in looked and "check_returncode" not in looked
        )
    if syntax.is_dropped(call):
        return not raises and _is_silenced(started)
    parent = syntax.parent(call)
    if isinstance(parent, ast.Attribute) and parent.attr in ("stdout", "returncode"):
        return not raises and parent.attr == "returncode" and _is_silenced(started)
    return True


def _asks_for_nobody(syntax: Syntax, started: Started) -> bool:
    """Say whether a question must be answered, and both the answer and the reason why there is none are thrown away.

    Of `which cmake` the exit code is the answer; inside `try` it is asked whether there is one at all.
    """
    is_answered = started.call.is_guarded or _is_silenced(started) or started.first not in TELLERS
    return syntax.is_dropped(started.call.node) and _raises(started) and not is_answered


def _raises(started: Started) -> bool:
    checks = started.call.keywords.get("check")
    return (checks is not None and checks.value is not False) or started.how in ("check_call", "check_output")


def _is_silenced(started: Started) -> bool:
    """Say whether the output is thrown away on purpose, as of something that may fail."""
    checks = started.call.keywords.get("check")
    return any(value.text.endswith("DEVNULL") for value in started.call.keywords.values()) or (
        checks is not None and checks.value is False
    )


def _handler_shows(syntax: Syntax) -> bool:
    for node in syntax.nodes:
        if isinstance(node, ast.ExceptHandler) and node.name:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and inner.attr in ("stderr", "stdout", "output"):
                    return True
    return False

"""The check `exit-code-ignored`: commands whose failure nobody notices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.script_commands import Started, only_asks, started_by
from ..scripts.syntax import syntax_of
from ..subject import Script, Subject
from ..tools import Tools

_RUN = "import subprocess\n"
_CLONE = "['git', 'clone', 'https://github.com/ggml-org/llama.cpp', 'llama.cpp']"


class ExitCodeIgnored(Check):
    """A command that fails stops the script, or is looked at.

    `subprocess.run` without `check=True` and `os.system` go on as if nothing had happened. The script then fails further
    down, where a file is missing, or ends well without having done its work.
    """

    passes = (
        Example(_RUN + f"subprocess.run({_CLONE}, check=True)\n"), Example(_RUN + f"subprocess.run({_CLONE}, check=False)\n"),
        Example(_RUN + f"done = subprocess.run({_CLONE})\nif done.returncode:\n    raise SystemExit('no clone')\n"),
        Example("import os\nos.system('nvidia-smi')\n"), Example("import os\nif os.system('cmake -B build') != 0:\n    raise SystemExit(1)\n"),
    )  # fmt: skip
    fails = (
        Example(_RUN + f"subprocess.run({_CLONE})\n"), Example("import os\nos.system('pip install -q trl')\n"),
        Example(_RUN + f"done = subprocess.run({_CLONE})\nprint('cloned')\n"), Example(_RUN + f"subprocess.call({_CLONE})\n"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at what becomes of the results of commands."""
        for script in subject.scripts:
            for started in started_by(script):
                if started.how in ("run", "call", "system") and not only_asks(started) and _is_ignored(script, started):
                    yield self._finding(script, started)

    def _finding(self, script: Script, started: Started) -> Finding:
        where = Place(script.named, started.call.line)
        what = f"{started.first or 'the command'} may fail, and the script goes on as if it had not"
        if started.how == "run":
            return self.warning(where, what, f"Add check=True:\n{_corrected(started)}")
        if started.how == "call":
            return self.warning(where, what, "Write subprocess.check_call(...) in place of subprocess.call(...)")
        command = started.call.arguments[0].text if started.call.arguments else "..."
        return self.warning(
            where,
            what,
            f"Write in place of os.system:\nimport subprocess\nsubprocess.run({command}, shell=True, check=True)",
        )


def _corrected(started: Started) -> str:
    text = ast.unparse(started.call.node)
    return f"{text[:-1]}, check=True)" if len(text) < 200 else "subprocess.run(..., check=True)"


def _is_ignored(script: Script, started: Started) -> bool:
    call = started.call
    if "check" in call.keywords or call.has_unknown_keywords:
        return False
    if started.how == "system" and "||" in (call.arguments[0].text if call.arguments else ""):
        return False
    syntax = syntax_of(script)
    if syntax.is_dropped(call.node):
        return True
    kept = syntax.kept_as(call.node)
    if not kept:
        return False
    looked, is_handed_on = syntax.attributes_of(kept, syntax.scope(call.node))
    return not looked and not is_handed_on

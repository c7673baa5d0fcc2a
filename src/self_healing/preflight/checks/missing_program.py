"""The check `missing-program`: a script starts a program that is not on this machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.build_steps import BUILD_TOOLS, Step, sees_to, steps_of
from ..packages.header import read_header
from ..packages.running import Way, how_it_runs
from ..scripts.script_commands import only_asks
from ..scripts.syntax import is_conditional, syntax_of
from ..subject import Script, Subject
from ..surroundings.here import runs_here
from ..tools import Tools

PACKAGES = {
    "git": "git", "git-lfs": "git-lfs", "ffmpeg": "ffmpeg", "ffprobe": "ffmpeg", "sox": "sox", "cmake": "cmake", "make": "make",
    "ninja": "ninja-build", "gcc": "gcc", "g++": "g++", "cc": "gcc", "c++": "g++", "clang": "clang", "curl": "curl", "wget": "wget", "aria2c": "aria2",
    "unzip": "unzip", "zip": "zip", "7z": "p7zip-full", "zstd": "zstd", "pigz": "pigz", "rsync": "rsync", "jq": "jq", "patch": "patch",
    "pdftotext": "poppler-utils", "pdftoppm": "poppler-utils", "tesseract": "tesseract-ocr", "pandoc": "pandoc", "convert": "imagemagick",
    "dot": "graphviz", "espeak-ng": "espeak-ng", "java": "default-jre-headless", "mpirun": "openmpi-bin", "numactl": "numactl",
}  # fmt: skip
"""Programs that are no part of Python's packages, and what Debian calls the package that holds them."""
_CLONE = "import subprocess\nsubprocess.run(['git', 'clone', 'https://github.com/org/code'], check=True)\n"
_CUT = "import subprocess\nsubprocess.run('ffmpeg -i talk.mp4 talk.wav', shell=True, check=True)\n"
_NONE: dict[str, object] = {"programs": [], "packages": {}}


class MissingProgram(Check):
    """The programs that a script starts are on the machine that it runs on.

    Otherwise it ends at that line with `FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'`, or in a shell with `ffmpeg: not
    found` and exit code 127: often behind the training, where its result is to be converted.
    """

    passes = (
        Example(_CLONE, machine={"programs": ["git"]}),
        Example(_CLONE.replace("['git'", "['./mine'"), machine=_NONE),
        Example("import shutil\nassert shutil.which('ffmpeg'), 'install ffmpeg'\n" + _CUT, machine=_NONE),
        Example(f"try:\n    import subprocess\n    {_CUT.splitlines()[1]}\nexcept OSError:\n    print('no sound')\n", machine=_NONE),
        Example("import subprocess\nsubprocess.run(['apt-get', 'install', '-y', 'ffmpeg'], check=True)\n" + _CUT, machine=_NONE),
        Example("ssh node python train.py", "command", files={"train.py": _CUT}, machine=_NONE),
        Example("hf jobs uv run --flavor t4-small train.py", "command", files={"train.py": _CUT}, machine=_NONE),
        Example("import os\nos.system('git rev-parse HEAD')\n", machine=_NONE),
    )  # fmt: skip
    fails = (
        Example(_CLONE, machine=_NONE),
        Example(_CUT, machine=_NONE),
        Example("uv run train.py", "command", files={"train.py": _CUT}, machine=_NONE),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for what scripts start that run here."""
        if not runs_here(subject, tools):
            return
        for script in subject.scripts:
            running, header = how_it_runs(subject, script), read_header(script)
            is_open = running.way is Way.UNSAID and header is not None  # as likely a job's
            if is_open or running.way in (Way.JOB, Way.ELSEWHERE) or _chooses_path(script):
                continue
            told = {each.name for each in header.listed} if header is not None else set()
            if running.is_fresh(header):
                told |= BUILD_TOOLS  # which another check tells of
            yield from self._of(script, tools, told)

    def _of(self, script: Script, tools: Tools, told: set[str]) -> Iterator[Finding]:
        for step in steps_of(script):
            name = step.words[0] if step.words else ""
            package = PACKAGES.get(name)
            if package is None or name in told or tools.machine.has_program(name, tools.environ.get("PATH")):
                continue
            is_seen_to = sees_to(script, {name, package, "build-essential"} if name in BUILD_TOOLS else {name, package})
            if is_seen_to or tools.machine.version(name) or _brings(script, name) or _is_optional(script, step):
                continue
            told.add(name)
            yield self.warning(
                Place(script.named, step.started.call.line),
                f"{name} is started here, and there is no such program on this machine",
                f"Install it, on Debian and Ubuntu: apt-get install -y {package} (as root)",
            )


def _chooses_path(script: Script) -> bool:
    """Say whether a script changes where programs are looked for."""
    return any(isinstance(node, ast.Constant) and node.value == "PATH" for node in syntax_of(script).nodes)


def _brings(script: Script, name: str) -> bool:
    """Say whether a module may bring a program along: `static_ffmpeg`."""
    return any(name in each.module for each in script.imports if len(name) > 3)


def _is_optional(script: Script, step: Step) -> bool:
    """Say whether a script can do without it: under a condition, where an error is caught, in a line that has another way."""
    started = step.started
    call = started.call
    if call.is_guarded or is_conditional(script, call) or "env" in call.keywords or call.has_unknown_keywords:
        return True
    if started.how == "own" and _catches(script, call.last):
        return True
    is_line = started.how in ("system", "getoutput", "getstatusoutput") or "shell" in call.keywords
    text = " ".join(value.text for value in call.arguments)
    return is_line and ("||" in text or only_asks(started))


def _catches(script: Script, function: str) -> bool:
    """Say whether a function of the script catches what its command raises."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == function and any(isinstance(each, ast.Try) for each in ast.walk(node))
        for node in syntax_of(script).nodes
    )  # fmt: skip

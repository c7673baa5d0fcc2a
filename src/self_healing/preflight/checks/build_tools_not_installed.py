"""The check `build-tools-not-installed`: a build in a new container, where nobody has installed the tools."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.build_steps import BUILD_TOOLS, installs_build_tools, steps_of
from ..packages.header import read_header
from ..packages.running import how_it_runs
from ..subject import Script, Subject
from ..tools import Tools

_HEAD = "# /// script\n# dependencies = []\n# ///\nimport subprocess\n"
_CMAKE = "subprocess.run(['cmake', '-B', 'build'], check=True)\n"
_APT = "subprocess.run(['apt-get', 'install', '-y', '-qq', 'build-essential', 'cmake'], check=True)\n"


class BuildToolsNotInstalled(Check):
    """A script that builds something in a new container installs the tools for it first.

    A container for Python holds no CMake and often no compiler: `FileNotFoundError: [Errno 2] No such file or directory:
    'cmake'`, after the training that the build was to follow.
    """

    passes = (
        Example(_HEAD + _APT + _CMAKE), Example("import subprocess\n" + _CMAKE), Example(_HEAD.replace("[]", '["cmake"]') + _CMAKE),
        Example(_HEAD + "import shutil\nif not shutil.which('cmake'):\n    raise SystemExit('install cmake')\n" + _CMAKE),
    )  # fmt: skip
    fails = (Example(_HEAD + _CMAKE), Example(_HEAD + "subprocess.run(['make', '-C', 'x'], check=True)\n"))

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for builds in scripts that start with nothing."""
        for script in subject.scripts:
            header = read_header(script)
            if not how_it_runs(subject, script).is_fresh(header):
                continue
            listed = {each.name for each in header.listed} if header is not None else set()
            yield from self._of(script, listed)

    def _of(self, script: Script, listed: set[str]) -> Iterator[Finding]:
        for step in steps_of(script):
            tool = step.program
            if tool not in BUILD_TOOLS or tool in listed or installs_build_tools(script, tool):
                continue
            yield self.warning(
                Place(script.named, step.started.call.line),
                f"{tool} is called, and nothing installs it: a new container may not have it",
                "Install it above this line:\n"
                'subprocess.run(["apt-get", "update", "-qq"], check=True)\n'
                'subprocess.run(["apt-get", "install", "-y", "-qq", "build-essential", "cmake"], check=True)',
            )  # fmt: skip
            return  # the same line mends them all

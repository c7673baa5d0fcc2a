"""The check `installed-version-differs`: a script that is run here, with other versions than its header asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

from ..check import Check, Example
from ..finding import Finding
from ..packages.dependencies import place_of, with_header
from ..packages.distributions import installed_version
from ..packages.running import Way
from ..subject import Command, Subject
from ..subject.started import program_of
from ..tools import Tools

_HEAD = "# /// script\n# dependencies = [{}]\n# ///\n"


class InstalledVersionDiffers(Check):
    """A script that an interpreter of this machine runs finds the versions its PEP 723 header asks for.

    `python train.py` and torchrun do not read the header: they take what is installed. What was written for
    transformers 5 then meets transformers 4, and fails at its first renamed argument.
    """

    passes = (
        Example("python train.py", "command", files={"train.py": _HEAD.format('"packaging>=20"')}),
        Example("uv run train.py", "command", files={"train.py": _HEAD.format('"packaging<2"')}),
    )
    fails = (Example("python train.py", "command", files={"train.py": _HEAD.format('"packaging<2"')}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare the header with what is installed here."""
        for script, header, running in with_header(subject):
            if running.way is not Way.HERE or subject.command is None or not _is_ours(subject.command):
                continue
            for each in header.listed:
                here = installed_version(each.name)
                marker = each.requirement.marker
                if here is None or (marker is not None and not marker.evaluate()):
                    continue
                if not each.requirement.specifier.contains(here, prereleases=True):
                    yield self.warning(
                        place_of(script, each.line),
                        f"the header asks for {each.text}, installed here is {here}; this command does not read the header",
                        f"Run it with `uv run {script.named}`, which makes an environment of the header, or install: "
                        f"pip install '{each.text}'",
                    )  # fmt: skip


def _is_ours(command: Command) -> bool:
    """Say whether the command's interpreter is the one whose packages are seen here."""
    program = PurePath(next(iter(program_of(command.argv)), ""))
    return len(program.parts) == 1 or Path(program).parent == Path(sys.executable).parent

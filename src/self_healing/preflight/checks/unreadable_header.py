"""The check `unreadable-header`: a PEP 723 header that its readers cannot read, or do not see."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.header import read_header
from ..subject import Subject
from ..tools import Tools

_GOOD = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#     "torch>=2.4",  # why\n# ]\n# ///\nimport torch\n'


class UnreadableHeader(Check):
    """The PEP 723 header of a script can be read by uv.

    It is known by its exact form. A missing `# ///` ends `uv run` with an error; a blank too many, and the header is a
    comment: the script starts in an empty environment and ends with `ModuleNotFoundError: No module named 'torch'`.
    """

    passes = (Example(_GOOD), Example("#!/usr/bin/env python\nprint(1)\n"))
    fails = (
        Example(_GOOD.replace("# ///\n", "")), Example(_GOOD.replace("# /// script", "#/// script")), Example(_GOOD + _GOOD),
        Example(_GOOD.replace('"torch>=2.4"', "torch>=2.4")), Example(_GOOD.replace("torch>=2.4", "torch=2.4")),
        Example(_GOOD.replace("dependencies", "requirements")), Example(_GOOD.replace("# ]", "#]")),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Read the header of every script."""
        for script in subject.scripts:
            header = read_header(script)
            for problem in header.problems if header is not None else ():
                yield self.error(Place(script.named, problem.line), problem.message, problem.fix)

"""The check `no-version-bound`: core libraries in a PEP 723 header that may be of any version."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..packages.dependencies import bound_for, place_of, unbounded, with_header
from ..subject import Subject
from ..tools import Tools

_HEAD = "# /// script\n# dependencies = [{}]\n# ///\n"


class NoVersionBound(Check):
    """The core libraries of a PEP 723 header have a bound: transformers, trl, torch, peft, datasets, accelerate.

    Without one every start takes the newest release. A script that ran last month ends with `TypeError: __init__() got an
    unexpected keyword argument 'tokenizer'`, and nothing in it has changed.
    """

    passes = (
        Example(_HEAD.format('"trl>=1.0,<2", "numpy"') + "import trl, numpy\n"),
        Example(_HEAD.format('"transformers @ git+https://github.com/huggingface/transformers@v5.0.0"')),
        Example(_HEAD.format('"trl"') + "import trl\n", files={"train.py.lock": "version = 1\n"}),
    )
    fails = (Example(_HEAD.format('"trl", "torch>=2.4"') + "import trl\n"),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at how the core libraries are listed."""
        for script, header, _ in with_header(subject):
            loose = unbounded(script, header)
            if not loose:
                continue
            names = [each.name for each in loose]
            lines = []
            for each in loose:
                bound = bound_for(each.name, header)
                extras = f"[{','.join(sorted(each.requirement.extras))}]" if each.requirement.extras else ""
                lines.append(f'#     "{each.requirement.name}{extras}{bound or "==<the version it was tried with>"}",')
            yield self.warning(
                place_of(script, loose[0].line),
                f"{', '.join(names)}: no bound, so every start takes the newest release, whatever it has changed",
                f"Write in the header the versions it was tried with, for example (`heal check --fix {script.named}` does it):\n"
                + "\n".join(lines),
            )  # fmt: skip

"""The check `no-header`: a script that is run in an empty environment and does not say what it needs."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.dependencies import available, line_for, missing_imports
from ..packages.header import read_header
from ..packages.running import Way, has_environment_for_uv, how_it_runs
from ..subject import Subject
from ..tools import Tools


class NoHeader(Check):
    """A script that `uv run` or a job starts in an empty environment has a PEP 723 header.

    A job's container holds Python and uv, nothing else: without a header or `--with` the first import ends it with
    `ModuleNotFoundError`, minutes after it was queued.
    """

    passes = (Example("uv run --with trl train.py", "command", files={"train.py": "import trl\n"}),
              Example("hf jobs uv run train.py", "command", files={"train.py": "import json\n"}),
              Example("python train.py", "command", files={"train.py": "import trl\n"}))  # fmt: skip
    fails = (Example("hf jobs uv run --flavor a10g-small train.py", "command", files={"train.py": "import trl\n"}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at scripts without a header that are not run here."""
        for script in subject.scripts:
            running = how_it_runs(subject, script)
            if running.way not in (Way.JOB, Way.UV) or running.has_image or read_header(script) is not None:
                continue
            has_place = "VIRTUAL_ENV" in tools.environ or has_environment_for_uv(script, tools.cwd)
            if running.way is Way.UV and has_place:
                continue
            there = available(script, None, running)
            missing = list(missing_imports(script, there)) if there is not None else []
            if missing:
                names = ", ".join(each.module for each in missing)
                lines = [line_for(each.names[0], None, f"import {each.module}") for each in missing]
                yield self.error(
                    Place(script.named, missing[0].line),
                    f"the script has no PEP 723 header, and {running.way} starts it in an empty environment: {names} "
                    f"{'is' if len(missing) == 1 else 'are'} not there",
                    f"Write at the top of {script.named} (or let `heal check --fix {script.named}` write it):\n"
                    + "\n".join(["# /// script", '# requires-python = ">=3.11"', "# dependencies = [", *lines, "# ]", "# ///"]),
                )  # fmt: skip

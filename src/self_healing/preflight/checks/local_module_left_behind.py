"""The check `local-module-left-behind`: modules beside a script, which a job does not carry along."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..packages.dependencies import is_local
from ..packages.distributions import is_standard
from ..packages.header import read_header
from ..packages.running import Way, how_it_runs
from ..subject import Script, Subject
from ..tools import Tools


class LocalModuleLeftBehind(Check):
    """A script that is sent away imports no module that lies beside it.

    `hf jobs uv run train.py` sends one file. `from rewards import score` finds nothing there: `ModuleNotFoundError: No
    module named 'rewards'`.
    """

    passes = (
        Example("hf jobs uv run train.py", "command", files={"train.py": "import json\n", "json.py": ""}),
        Example("python train.py", "command", files={"train.py": "import rewards\n", "rewards.py": ""}),
    )
    fails = (Example("hf jobs uv run train.py", "command", files={"train.py": "import rewards\n", "rewards.py": ""}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for files of the names that are imported."""
        for script in subject.scripts:
            way = how_it_runs(subject, script).way
            if way is Way.JOB or (way is Way.UNSAID and read_header(script) is not None):
                yield from self._of(script, is_job=way is Way.JOB)

    def _of(self, script: Script, *, is_job: bool) -> Iterator[Finding]:
        told: set[str] = set()
        for each in script.imports:
            if is_standard(each.module) or each.is_guarded or not is_local(script, each.module):
                continue
            name = each.module.partition(".")[0] or each.module
            if name in told:
                continue
            told.add(name)
            said = f"{name} lies beside the script: a job gets the script alone, not this module"
            fix = f"Copy what is used of {name} into {script.named}, or publish it and add it to the header's dependencies"
            yield (self.error if is_job else self.info)(Place(script.named, each.line), said, fix)

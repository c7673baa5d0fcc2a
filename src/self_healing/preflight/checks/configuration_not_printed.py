"""The check `configuration-not-printed`: a job whose log does not say what it was run with."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..running import Way, how_it_runs
from ..subject import Script, Subject
from ..tools import Tools

_TRAINS = "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(output_dir='out')\n{}SFTTrainer(model='m', args=args).train()\n"
_JOB = "hf jobs uv run --with trl train.py"


class ConfigurationNotPrinted(Check):
    """A job prints its configuration before it trains.

    When a job has failed its log is what is left of it. Without the configuration in it nobody can say afterwards which
    model, data and rates it was.
    """

    passes = (
        Example(_JOB, "command", files={"train.py": _TRAINS.format("print(args)\n")}),
        Example("train.py", "command", files={"train.py": _TRAINS.format("")}),
    )
    fails = (Example(_JOB, "command", files={"train.py": _TRAINS.format("")}),)

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for anything that prints or logs above the training."""
        for script in subject.scripts:
            if how_it_runs(subject, script).way is not Way.JOB:
                continue
            trains = next((call for call in script.calls if call.last == "train" and "rainer" in call.name), None)
            if trains is not None and not _says_something(script, trains.line):
                yield self.info(
                    Place(script.named, trains.line), "nothing is printed before training begins: the job's log will not say what it was run with",
                    "Print the configuration above this line:\nprint(args)",
                )  # fmt: skip


def _says_something(script: Script, before: int) -> bool:
    says = ("print", "info", "pprint", "log", "dump", "init", "warning")
    return any(call.last in says and call.line <= before for call in script.calls)

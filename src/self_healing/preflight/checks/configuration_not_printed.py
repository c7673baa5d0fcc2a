"""The check `configuration-not-printed`: a run whose log does not say what it was run with."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.syntax import SAYING, syntax_of
from ..subject import Call, Script, Subject
from ..tools import Tools

_TRAINS = "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(output_dir='out')\n{}SFTTrainer(model='m', args=args).train()\n"
_JOB = "hf jobs uv run --with trl train.py"


_SAYS = SAYING | {"dump", "init", "log_hyperparams", "save_config"}


class ConfigurationNotPrinted(Check):
    """A training prints its configuration before it begins.

    When a run has failed its log is what is left of it. Without the configuration in it nobody can say afterwards which
    model, data and rates it was: flags and variables are gone, and the script has been changed since.
    """

    passes = (
        Example(_JOB, "command", files={"train.py": _TRAINS.format("print(args)\n")}),
        Example(_TRAINS.format("print(f'{args}')\n")),
        Example(_TRAINS.replace("'out'", "'out', report_to='wandb'").format("")),
        Example("for batch in loader:\n    model(batch).backward()\n    print(batch)\n"),
    )
    fails = (
        Example(_JOB, "command", files={"train.py": _TRAINS.format("")}),
        Example(_TRAINS.format("")),
        Example(_TRAINS.format("print('training begins')\n")),
        Example(
            "import os\nlr = float(os.environ.get('LR', '1'))\nfor batch in loader:\n    model(batch).backward()\n"
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look for anything that prints or logs a value above the training."""
        if _is_tracked(subject):
            return
        for script in subject.scripts:
            trains = _training(script)
            if trains is not None and not any(_says(call, trains) for call in script.calls):
                yield self.info(
                    Place(script.named, trains.line), "no setting is printed before training begins: the log will not say what it was run with",
                    _fix(script, trains),
                )  # fmt: skip


def _is_tracked(subject: Subject) -> bool:
    """Say whether a tracker keeps the configuration, or may do so."""
    report = subject.setting("report_to")
    return report is not None and report.value not in (None, "none", [], ["none"], ("none",))


def _training(script: Script) -> Call | None:
    """Return the call that begins to train; a loop of one's own counts where its settings come from outside."""
    for call in script.calls_of("train"):
        if "rainer" in call.name:
            return call
    is_set_outside = script.environment or any(True for _ in script.calls_of("parse_args", "parse_known_args"))
    return next(script.calls_of("backward"), None) if is_set_outside else None


def _fix(script: Script, trains: Call) -> str:
    """Return what to print, by a name that is there at the call."""
    kept = ""
    if trains.last == "train" and isinstance(trains.node.func, ast.Attribute):
        kept = f"{ast.unparse(trains.node.func.value)}.args"
    for call in () if kept else script.calls_of("parse_args", "parse_known_args"):
        kept = kept or syntax_of(script).kept_as(call.node)
    if not kept:
        return "Print what the run depends on above this line (learning rate, batch, length, model, data), but no token"
    return f"Print the configuration above this line:\nprint({kept})"


def _says(call: Call, trains: Call) -> bool:
    """Say whether a call tells a value before the training begins, or may do so in a function of its own."""
    is_before = call.line <= trains.line or call.function not in ("", trains.function)
    is_value = not call.arguments or any(not isinstance(each, ast.Constant) for each in call.node.args)
    return call.last in _SAYS and is_before and is_value

"""The check `no-progress-shown`: a training of which nothing can be seen while it runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding, Place
from ..scripts.plain_loops import silent_loop
from ..subject import Setting, Subject
from ..tools import Tools

_LOOP = "import torch\nfor _ in range(200):\n    for batch in loader:\n        loss = model(batch)\n        loss.backward()\n        optimizer.step()\n{}torch.save(model, 'm.pt')\n"  # fmt: skip
_TRAINS = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model='m', args=SFTConfig(output_dir='out', {})).train()\n"


class NoProgressShown(Check):
    """A training shows its progress somewhere: a bar, a log, a tracker.

    With `disable_tqdm=True`, `logging_strategy="no"` and `report_to="none"` together, a run that learns nothing, one that hangs
    and one that goes well look the same until it ends. So do they in a loop of one's own that prints, logs and saves nothing.
    """

    passes = (
        Example(_TRAINS.format("report_to='none'")), Example(_TRAINS.format("disable_tqdm=True, report_to='none', logging_steps=10")),
        Example(_TRAINS.format("disable_tqdm=True, logging_strategy='no', report_to='wandb'")),
        Example(_LOOP.format("    print(loss.item())\n")),
    )  # fmt: skip
    fails = (
        Example(_TRAINS.format("disable_tqdm=True, logging_strategy='no', report_to='none'")),
        Example(_LOOP.format("")),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at everything that shows progress."""
        yield from self._of_plain_loops(subject)
        silent = subject.setting("logging_strategy")
        report = subject.setting("report_to")
        if silent is None or report is None or silent.value != "no" or not _is_none(report):
            return
        if not subject.is_on("disable_tqdm") or _shows_itself(subject):
            return
        yield self.warning(
            silent.place, "no progress bar, no log lines and no tracker: nothing will be seen of this run until it ends",
            'Write logging_strategy="steps", logging_steps=10 in place of logging_strategy="no"',
        )  # fmt: skip

    def _of_plain_loops(self, subject: Subject) -> Iterator[Finding]:
        for script in subject.scripts:
            loop = silent_loop(script)
            if loop is not None:
                yield self.warning(
                    Place(script.named, getattr(loop, "lineno", 0)), "this loop trains and prints, logs and saves nothing: nothing will be seen of it until it ends",
                    'Say in it how far it is and how well it goes, every so many steps:\nprint(f"step {step}: loss {loss.item():.4f}", flush=True)',
                )  # fmt: skip


def _is_none(report: Setting) -> bool:
    value = report.value
    return value in ("none", []) or (isinstance(value, list | tuple) and list(value) == ["none"])


def _shows_itself(subject: Subject) -> bool:
    """Say whether a callback or a log file of the script's own may show it."""
    for _, call in subject.calls():
        if "callbacks" in call.keywords or call.last in ("add_callback", "FileHandler", "SummaryWriter", "init"):
            return True
        if call.last == "basicConfig" and "filename" in call.keywords:
            return True
    return False

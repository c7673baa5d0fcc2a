"""The check `rare-logging`: a log that is written so seldom that trouble is seen too late."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings

LARGEST = 500
"""The default of transformers."""
SHORTEST = 20
"""A run below that is a trial: its summary says enough."""


class RareLogging(Check):
    """The loss is logged often enough that trouble is seen.

    A loss that diverges at step 30 is first seen at step `logging_steps`; what is logged is the mean since the last line, which
    hides spikes. Where the interval is longer than the run, nothing is logged at all. 0 ends with `logging strategy steps
    requires non-zero --logging_steps`.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', logging_steps=10)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', max_steps=5, logging_first_step=True)\n"),
        Example("base_model: m\nlogging_steps: 1\n", "config.yaml"),
        Example("trl sft --logging_steps 25", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', logging_steps=5000)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', logging_steps=0)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', max_steps=200)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', logging_strategy='no')\n"),
        Example("base_model: m\nlogging_steps: 1000\n", "config.yaml"),
        Example("trl sft --logging_steps 100 --max_steps 60", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the interval of each training."""
        for training in trainings(subject):
            if training.owner not in ("config", "command"):
                yield from self._of(training)

    def _of(self, training: Training) -> Iterator[Finding]:
        strategy = training.text("logging_strategy", "steps")
        default = None if training.owner == "axolotl" else 10 if training.is_trl else LARGEST
        steps, most = training.number("logging_steps", default), training.number("max_steps", -1)
        if strategy == "no":
            yield self.warning(
                training.where("logging_strategy"), 'logging_strategy is "no": nobody sees a loss that diverges',
                'Write logging_strategy="steps", logging_steps=10',
            )  # fmt: skip
        elif strategy != "steps" or steps is None:
            return
        elif steps == 0:
            yield self.error(
                training.where("logging_steps"),
                "logging strategy steps requires non-zero logging_steps",
                "Write logging_steps=10",
            )
        elif steps > 1 and steps != int(steps):
            yield self.error(
                training.where("logging_steps"), f"logging_steps must be an integer if bigger than 1: {steps:g}",
                f"Write logging_steps={int(steps)}",
            )  # fmt: skip
        elif steps > LARGEST:
            yield self.warning(
                training.where("logging_steps"), f"the loss is logged every {steps:g} steps: what goes wrong before is not seen",
                "Write logging_steps=10",
            )  # fmt: skip
        elif most is not None and SHORTEST <= most < steps and not training.is_on("logging_first_step"):
            yield self.warning(
                training.where("logging_steps", "max_steps"), f"the loss is logged every {steps:g} steps, and the run has {most:g}: it is never logged",
                f"Write logging_steps={max(1, int(most) // 20)}",
            )  # fmt: skip

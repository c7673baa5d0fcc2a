"""The check `odd-warm-up`: a warm-up that is longer than the run, or none that the scheduler knows."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings

LARGEST_SHARE = 0.5


class OddWarmUp(Check):
    """The warm-up is a small part of the run.

    The learning rate rises during the warm-up. Where `warmup_steps` is not below `max_steps` it never reaches its value; a
    negative one ends with `warmup_steps must be an integer or a float`. From transformers 5 on, a number below 1 is a share
    of all steps.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', warmup_steps=100, max_steps=1000)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', warmup_steps=0.03)\n"),
        Example("base_model: m\nwarmup_ratio: 0.1\n", "config.yaml"),
        Example("trl sft --warmup_steps 100", "command"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', warmup_steps=500, max_steps=200)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', warmup_steps=-5)\n"),
        Example("base_model: m\nwarmup_ratio: 0.8\n", "config.yaml"),
        Example("base_model: m\nwarmup_ratio: 10\n", "config.yaml"),
        Example("trl sft --max_steps 100 --warmup_steps 100", "command"),
        Example("from trl import SFTConfig\nSFTConfig('o', warmup_steps=100, lr_scheduler_type='constant')\n"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the steps and the share of the warm-up."""
        for training in trainings(subject):
            yield from self._of(training)

    def _of(self, training: Training) -> Iterator[Finding]:
        steps, share = training.number("warmup_steps"), training.number("warmup_ratio")
        most = training.number("max_steps")
        if steps is not None and 0 < steps < 1:
            steps, share = None, steps
        if steps is not None and steps < 0:
            yield self.error(
                training.where("warmup_steps"),
                f"warmup_steps is {steps:g}",
                "Write warmup_steps=0, or a number of steps",
            )
        elif steps is not None and most is not None and most > 0 and steps >= most:
            yield self.warning(
                training.where("warmup_steps"),
                f"the warm-up of {steps:g} steps is as long as the run ({most:g} steps): the learning rate never reaches its value",
                f"Write warmup_steps={max(1, int(most * 0.03))} (3 % of the run)",
            )
        if share is not None and not 0 <= share <= 1:
            yield self.error(
                training.where("warmup_ratio", "warmup_steps"), f"a warm-up of {share:g} is no share between 0 and 1",
                "Write 0.03, or the number of steps as warmup_steps",
            )  # fmt: skip
        elif share is not None and share > LARGEST_SHARE:
            yield self.warning(
                training.where("warmup_ratio", "warmup_steps"), f"the warm-up takes {share:.0%} of the run",
                "Write 0.03 .. 0.1: the learning rate should have its value most of the time",
            )  # fmt: skip
        elif (steps or share) and training.text("lr_scheduler_type") == "constant":
            yield self.info(
                training.where("warmup_steps", "warmup_ratio"), "the scheduler `constant` ignores the warm-up",
                "Write lr_scheduler_type=constant_with_warmup to have one",
            )  # fmt: skip

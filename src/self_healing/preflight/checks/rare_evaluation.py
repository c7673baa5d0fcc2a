"""The check `rare-evaluation`: an evaluation that is asked for, and comes when nothing can be done any more."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, trainings

SHORTEST = 20
"""A run below that is a trial."""


class RareEvaluation(Check):
    """A run that evaluates by steps does so before it is over.

    Where `eval_steps` is larger than `max_steps`, the first evaluation is that of the last step (older releases of transformers make
    none): overfitting is not seen, early stopping never stops, and the best model is always the last. With an `eval_delay` beyond the
    run there is no evaluation at all. 2.5 steps end with `--eval_steps must be an integer if bigger than 1`.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=50, max_steps=200)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=0.2, max_steps=200)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', eval_steps=500, max_steps=200)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=500)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=500, max_steps=4)\n"),
        Example("from trl import *\nt = SFTTrainer('m', args=SFTConfig('o', eval_strategy='steps', eval_steps=500, max_steps=200))\nt.train()\nt.evaluate()\n"),
        Example("base_model: m\neval_steps: 500\nmax_steps: 200\nval_set_size: 0\n", "config.yaml"),
        Example("trl sft --eval_strategy steps --eval_steps 200 --max_steps 200", "command"),
    )  # fmt: skip
    fails = (
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=500, max_steps=200)\n"),
        Example("from trl import SFTConfig\nSFTConfig('o', eval_strategy='steps', eval_steps=50, eval_delay=300, max_steps=200)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', eval_strategy='steps', eval_steps=2.5)\n"),
        Example("base_model: m\neval_steps: 500\nmax_steps: 200\nval_set_size: 0.1\n", "config.yaml"),
        Example("trl dpo --eval_strategy steps --eval_steps 1000 --max_steps 600", "command"),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at the interval of each training; where it is that of the log, rare-logging speaks of it."""
        for training in trainings(subject):
            steps = training.number("eval_steps") if training.has("eval_steps") else None
            is_of_log = subject.trainer is not None and steps == training.number("logging_steps")
            if steps is not None and _evaluates_by_steps(training) and not is_of_log:
                yield from self._of(training, steps)

    def _of(self, training: Training, steps: float) -> Iterator[Finding]:
        most, delay = training.number("max_steps", -1), training.number("eval_delay", 0)
        if steps > 1 and steps != int(steps):
            yield self.error(
                training.where("eval_steps"), f"eval_steps must be an integer if bigger than 1: {steps:g}",
                f"Write eval_steps={int(steps)}",
            )  # fmt: skip
            return
        if most is None or most < SHORTEST or _is_evaluated_later(training):
            return
        if delay is not None and delay > most:
            yield self.warning(
                training.where("eval_delay"), f"evaluation begins after {delay:g} steps, and the run has {most:g}: it is never evaluated",
                "Remove eval_delay",
            )  # fmt: skip
        elif steps > most:
            yield self.warning(
                training.where("eval_steps"), f"it is evaluated every {steps:g} steps, and the run has {most:g}: at its end at most, by older transformers never",
                f"Write eval_steps={max(1, int(most) // 10)}",
            )  # fmt: skip


def _evaluates_by_steps(training: Training) -> bool:
    if training.owner == "axolotl":  # which evaluates by steps where they are given and there is data
        has_data = bool(training.number("val_set_size", 0)) or training.has("test_datasets")
        return has_data and training.text("eval_strategy", "steps") == "steps"
    return training.text("eval_strategy", "no") == "steps"


def _is_evaluated_later(training: Training) -> bool:
    return training.script is not None and any(training.script.calls_of("evaluate"))

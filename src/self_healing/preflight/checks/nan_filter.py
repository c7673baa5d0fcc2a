"""The check `nan-filter`: the filter that keeps NaN out of the log."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import trainings


class NanFilter(Check):
    """The log shows a loss that is not a number.

    `logging_nan_inf_filter` is on unless it is switched off: a loss that is NaN or infinite is replaced by the mean of the
    others, so that a run whose weights are NaN logs a loss of 0.0 to its end; only grad_norm shows it. This is a note: trainings under
    this package's own supervision look at the loss themselves.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig('o', logging_nan_inf_filter=False)\n"),
        Example("from self_healing import SelfHealingTrainer\nfrom trl import SFTConfig\nSFTConfig('o')\n"),
        Example("base_model: m\nloss_watchdog_threshold: 5.0\n", "config.yaml"),
        Example("trl sft --logging_nan_inf_filter False", "command"),
    )
    fails = (
        Example("from transformers import TrainingArguments\nTrainingArguments('o')\n"),
        Example("model_name_or_path: m\nlogging_nan_inf_filter: true\n", "config.yaml"),
        Example("trl sft --learning_rate 2e-5", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Say once that the filter is on."""
        if subject.trainer is not None or any("self_healing" in script.text for script in subject.scripts):
            return
        for training in trainings(subject):
            is_on = training.value("logging_nan_inf_filter", default=True)
            if is_on is True and training.owner not in ("axolotl", "config", "command"):
                yield self.info(
                    training.where("logging_nan_inf_filter"),
                    "logging_nan_inf_filter is on: a loss that is NaN is logged as the mean of the others, or as 0.0",
                    "Write logging_nan_inf_filter=False, and look at grad_norm too",
                )
                return

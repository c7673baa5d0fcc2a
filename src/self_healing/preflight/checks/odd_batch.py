"""The check `odd-batch`: batch sizes that cannot be, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, process_count, trainings

_SIZES = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
HUGE = 16_384
"""Sequences in one step of the optimizer; fine-tuning has some hundreds."""


class OddBatch(Check):
    """Batch sizes and accumulation are whole numbers from 1 on, and together no more than a fine-tuning can use.

    `DataLoader` ends with `batch_size should be a positive integer value`, accumulation over 0 steps with `integer division
    or modulo by zero`. The batch of one optimizer step is batch size x accumulation x processes: tens of thousands of
    sequences leave a fine-tuning with a handful of steps.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=8)\n"),
        Example("base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n", "config.yaml"),
        Example(
            "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 8",
            "command",
            files={"train.py": "main()\n"},
        ),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=0)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', gradient_accumulation_steps=-1)\n"),
        Example("base_model: m\nmicro_batch_size: 2.5\n", "config.yaml"),
        Example("trl sft --gradient_accumulation_steps 0 --model_name_or_path m", "command"),
        Example("trl sft --per_device_train_batch_size 512 --gradient_accumulation_steps 64", "command"),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every size, then at the product."""
        for training in trainings(subject):
            faults = list(self._sizes(training))
            yield from faults or self._product(training, process_count(subject))

    def _sizes(self, training: Training) -> Iterator[Finding]:
        for name in _SIZES:
            setting = training.setting(name)
            if setting is None or setting.value is None or isinstance(setting.value, str):
                continue
            value = setting.value
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield self.error(
                    setting.place, f"{setting.key} is {setting.text or value}, and must be a whole number from 1 on",
                    f"Write {setting.key} with 1, or as many as fit into the memory",
                )  # fmt: skip

    def _product(self, training: Training, processes: int | None) -> Iterator[Finding]:
        size = training.number("per_device_train_batch_size", 8)
        steps = training.number("gradient_accumulation_steps", 1)
        if size is None or steps is None or not training.method:
            return
        batch = int(size * steps * (processes or 1))
        if batch >= HUGE:
            many = f" x {processes} processes" if processes else ""
            yield self.warning(
                training.where("gradient_accumulation_steps", "per_device_train_batch_size"),
                f"one optimizer step takes {batch:,} sequences ({size:g} per device x {steps:g} accumulated{many})",
                f"Lower gradient_accumulation_steps until the product is some hundreds, e.g. to {max(1, int(steps * 256 // batch))}",
            )

"""The check `odd-batch`: batch sizes that cannot be, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, process_count, trainings
from ..training.deepspeed_batch import MICRO, STEPS, TOTAL, Batches, deepspeed_batches

_SIZES = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
HUGE = 16_384
"""Sequences in one step of the optimizer; fine-tuning has some hundreds."""

_DEEPSPEED = '{"zero_optimization": {"stage": 2}, "train_batch_size": %s, "train_micro_batch_size_per_gpu": 8}'


class OddBatch(Check):
    """Batch sizes and accumulation are whole numbers from 1 on, and together no more than a fine-tuning can use.

    `DataLoader` ends with `batch_size should be a positive integer value`, accumulation over 0 steps with `integer division
    or modulo by zero`. The batch of one optimizer step is batch size x accumulation x processes: tens of thousands of
    sequences leave a fine-tuning with a handful of steps. A DeepSpeed config that says the sizes again has to agree: `Check batch
    related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size`, or `Please
    correct the following DeepSpeed config values that mismatch TrainingArguments values`. `auto` always agrees.
    """

    passes = (
        Example("from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=8)\n"),
        Example("base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\n", "config.yaml"),
        Example(
            "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 8",
            "command",
            files={"train.py": "main()\n"},
        ),
        Example(_DEEPSPEED % '"auto"', "ds.json", {"gpus": 3}),
        Example(_DEEPSPEED % "32", "ds.json", {"gpus": 4}),
        Example(_DEEPSPEED % "32", "ds.json"),
    )
    fails = (
        Example("from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=0)\n"),
        Example("from transformers import TrainingArguments\nTrainingArguments('o', gradient_accumulation_steps=-1)\n"),
        Example("base_model: m\nmicro_batch_size: 2.5\n", "config.yaml"),
        Example("trl sft --gradient_accumulation_steps 0 --model_name_or_path m", "command"),
        Example("trl sft --per_device_train_batch_size 512 --gradient_accumulation_steps 64", "command"),
        Example(_DEEPSPEED % "32", "ds.json", {"gpus": 3}),
        Example(_DEEPSPEED % "33", "ds.json"),
        Example(
            "from trl import SFTConfig\nSFTConfig('o', deepspeed='ds.json', per_device_train_batch_size=2)\n",
            files={"ds.json": _DEEPSPEED % '"auto"'},
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Look at every size, then at the product."""
        for training in trainings(subject):
            faults = list(self._sizes(training))
            yield from faults or self._product(training, process_count(subject))
        for batches in deepspeed_batches(subject, tools.cwd) if subject.trainer is None else ():
            differing = list(self._differing(batches))
            yield from differing or self._total(batches, process_count(subject))

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

    def _differing(self, batches: Batches) -> Iterator[Finding]:
        """Compare a DeepSpeed config with the arguments of its training, as transformers does."""
        training = batches.training
        for theirs, ours in ((MICRO, "per_device_train_batch_size"), (STEPS, "gradient_accumulation_steps")):
            size = batches.size(theirs)
            own = _size(training, ours) if training is not None else None
            if training is not None and size is not None and own is not None and size != own:
                yield self.error(
                    batches.where(theirs), f"{theirs} is {size} in the DeepSpeed config, and {training.shown(ours)} of the training is {own:g}",
                    f'Write "{theirs}": "auto" in the DeepSpeed config: it takes the value of the training',
                )  # fmt: skip

    def _total(self, batches: Batches, processes: int | None) -> Iterator[Finding]:
        """Do the arithmetic of DeepSpeed; where it is not said how many processes there are, some number has to fit."""
        total, training = batches.size(TOTAL), batches.training
        size, steps = batches.size(MICRO), batches.size(STEPS)
        if training is not None:  # which fills in what is `auto`; what is missing too
            size = size or _size(training, "per_device_train_batch_size")
            steps = steps or _size(training, "gradient_accumulation_steps")
        given = [(each, word) for each, word in ((size, "per GPU"), (steps, "accumulated")) if each is not None]
        if total is None or size is None:
            return
        product = size * (steps or 1) * (processes or 1)
        is_whole = steps is not None and processes is not None  # otherwise DeepSpeed finds what is missing by dividing
        if total == product if is_whole else total % product == 0:
            return
        text = " x ".join(f"{each} {word}" for each, word in given) + (f" x {processes} processes" if processes else "")
        yield self.error(
            batches.where(TOTAL), f"train_batch_size is {total} in the DeepSpeed config, but {text} is {product}",
            f'Write "{TOTAL}": "auto" where transformers reads the config; otherwise {product}, or leave it out',
        )  # fmt: skip


def _size(training: Training, name: str) -> int | None:
    """Return a size of a training: what is given, or the default of transformers or Axolotl."""
    default = 8 if name == "per_device_train_batch_size" and training.owner != "axolotl" else 1
    value = training.number(name, default)
    return int(value) if value is not None and value >= 1 and value == int(value) else None

"""The check `uneven-generations`: groups of completions that do not fill the batches of GRPO and RLOO."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..tools import Tools
from ..training import Training, process_count, trainings

_DEFAULTS = {"grpo": 8, "rloo": 2}
"""TRL 1.16: completions per prompt."""


class UnevenGenerations(Check):
    """The batch that GRPO or RLOO generates holds whole groups of at least two completions.

    Advantages are computed inside the group of one prompt. TRL ends with `generation_batch_size (12) must be divisible by
    num_generations (8)`, where that batch is batch size x processes x steps_per_generation (which is the accumulation
    unless it is given), or with `GRPO requires at least 2 generations per prompt`.
    """

    passes = (
        Example(
            "from trl import GRPOConfig\nGRPOConfig('o', per_device_train_batch_size=4, gradient_accumulation_steps=4)\n"
        ),
        Example("from trl import GRPOConfig\nGRPOConfig('o', num_generations=16, generation_batch_size=32)\n"),
        Example("base_model: m\nrl: grpo\nmicro_batch_size: 8\ntrl:\n  num_generations: 4\n", "config.yaml"),
        Example("torchrun --nproc_per_node 4 train.py --num_generations 8", "command", files={"train.py": "main()\n"}),
    )
    fails = (
        Example("from trl import GRPOConfig\nGRPOConfig('o', per_device_train_batch_size=4, num_generations=6)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', num_generations=1)\n"),
        Example("from trl import RLOOConfig\nRLOOConfig('o', generation_batch_size=16, steps_per_generation=2)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', generation_batch_size=20)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', eval_strategy='steps', per_device_eval_batch_size=3)\n"),
        Example("from trl import GRPOConfig\nGRPOConfig('o', auto_find_batch_size=True)\n"),
        Example("base_model: m\nrl: grpo\nmicro_batch_size: 2\ntrl:\n  num_generations: 1\n", "config.yaml"),
        Example("trl grpo --per_device_train_batch_size 3 --num_generations 4", "command", {"gpus": 2}),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Do the arithmetic of `GRPOConfig.__post_init__`."""
        for training in trainings(subject) if subject.trainer is None else ():  # a trainer's constructor has done it
            if training.method in _DEFAULTS:
                yield from self._of(training, process_count(subject))

    def _of(self, training: Training, processes: int | None) -> Iterator[Finding]:
        group = training.number("num_generations", _DEFAULTS[training.method])
        if group is not None and group < 2:
            yield self.error(
                training.where("num_generations"),
                f"num_generations is {group:g}: {training.method.upper()} compares the completions of one prompt with each other and needs at least 2",
                "Write num_generations=8 (or 2, 4 where memory is short)",
            )
            return
        if training.is_on("auto_find_batch_size"):
            yield self.error(
                training.where("auto_find_batch_size"),
                f"auto_find_batch_size is not supported by {training.method.upper()}: a smaller batch would split the groups of a prompt",
                "Remove auto_find_batch_size and lower per_device_train_batch_size",
            )
        size = training.number("per_device_train_batch_size", 8)
        batch, steps = training.value("generation_batch_size"), training.value("steps_per_generation")
        if isinstance(batch, int) and isinstance(steps, int):
            yield self.error(
                training.where("steps_per_generation"),
                "generation_batch_size and steps_per_generation can not be both configured at the same time",
                "Remove one of them; steps_per_generation is the easier one to keep",
            )
            return
        if group is None or size is None or size < 1:
            return
        if isinstance(batch, int):
            yield from self._given_batch(training, batch, int(size), int(group), processes)
        elif batch is None and steps is None:
            yield from self._product(
                training, int(size), training.number("gradient_accumulation_steps", 1), int(group), processes
            )
        elif batch is None and isinstance(steps, int):
            yield from self._product(training, int(size), steps, int(group), processes)
        yield from self._evaluation(training, int(group), processes)

    def _given_batch(
        self, training: Training, batch: int, size: int, group: int, processes: int | None
    ) -> Iterator[Finding]:
        where = training.where("generation_batch_size")
        if batch % group:
            yield self.error(
                where, f"generation_batch_size ({batch}) must be divisible by num_generations ({group})",
                f"Write generation_batch_size={max(group, batch // group * group)}",
            )  # fmt: skip
        elif processes is not None and batch % (size * processes):
            yield self.error(
                where, f"generation_batch_size ({batch}) must be divisible by the global batch size ({size} x {processes} processes)",
                f"Write generation_batch_size={_common(size * processes, group)}",
            )  # fmt: skip

    def _product(
        self, training: Training, size: int, steps: float | None, group: int, processes: int | None
    ) -> Iterator[Finding]:
        if steps is None or steps < 1:
            return
        batch = int(size * steps * (processes or 1))
        if batch % group == 0:
            return
        needed = next(times for times in range(1, group + 1) if batch * times % group == 0)
        fix = f"Write gradient_accumulation_steps={int(steps) * needed} (or another size: the product must be a multiple of {group})"
        where = training.where("num_generations", "per_device_train_batch_size")
        text = f"batch size {size} x {steps:g} steps per generation"
        if processes is not None:
            yield self.error(
                where, f"generation_batch_size ({text} x {processes} processes = {batch}) must be divisible by num_generations ({group})", fix
            )  # fmt: skip
        else:
            yield self.warning(
                where, f"{text} = {batch} on one process, which is not divisible by num_generations ({group}): TRL refuses to start",
                f"{fix}, or start a multiple of {needed} processes and say so with --gpus",
            )  # fmt: skip

    def _evaluation(self, training: Training, group: int, processes: int | None) -> Iterator[Finding]:
        if training.text("eval_strategy", "no") in ("no", None):
            return
        size = training.number("per_device_eval_batch_size", 8)
        own = training.number("num_generations_eval") or group
        if size is None or size < 1:
            return
        if (size * (processes or 1)) % own:
            message = f"the global eval batch size ({size:g} x {processes or 1}) must be divisible by the number of generations used for evaluation ({own:g})"
            make = self.error if processes is not None else self.warning
            yield make(
                training.where("per_device_eval_batch_size", "eval_strategy"), message,
                f"Write per_device_eval_batch_size={int(own)} (or num_generations_eval to fit)",
            )  # fmt: skip


def _common(first: int, second: int) -> int:
    return next(first * times for times in range(1, second + 1) if first * times % second == 0)

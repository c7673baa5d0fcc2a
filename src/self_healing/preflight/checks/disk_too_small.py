"""The check `disk-too-small`: room for the checkpoints to come."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Subject
from ..surroundings.here import gib, is_adapter_only, model_bytes, nearest_there, output_folder, runs_here
from ..tools import Tools

STATE = 3.0
"""A checkpoint in weights: the weights themselves, and the two moments of Adam."""


class DiskTooSmall(Check):
    """The disk that checkpoints go to has room for those that will be written.

    A full disk shows after hours, in the middle of a save: `OSError: [Errno 28] No space left on device`, or `PytorchStreamWriter
    failed writing file`, and leaves a checkpoint that cannot be loaded. The newest checkpoint is written before the oldest is
    deleted, so `save_total_limit` needs room for one more.
    """

    passes = (
        Example(
            "python -m sft --output_dir out --model_name_or_path Qwen/Qwen2.5-0.5B --max_steps 1000 --save_total_limit 1",
            "command", machine={"free_bytes": 10 * 10**9},
        ),
        Example(
            "python -m sft --output_dir out --model_name_or_path org/model-7B --use_peft", "command",
            machine={"free_bytes": 10**9},
        ),
    )  # fmt: skip
    fails = (
        Example(
            "python -m sft --output_dir out --model_name_or_path org/model-7B --max_steps 2000 --save_steps 100", "command",
            machine={"free_bytes": 100 * 10**9},
        ),
    )  # fmt: skip

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare count x size with what is free."""
        folder = output_folder(subject, tools)
        if folder is None or not runs_here(subject, tools) or is_adapter_only(subject):
            return
        weights = model_bytes(subject, tools)
        free = tools.machine.free_bytes(nearest_there(folder[0]))
        if weights is None or free is None:
            return
        size, is_measured = weights
        each = size if subject.is_on("save_only_model") else size * STATE
        count = _count(subject)
        if count * each <= free:
            return
        told = "" if is_measured else " at least, by the number of the model's parameters"
        say = self.error if is_measured or count * each > 2 * free else self.warning
        room = math.floor(free / each)
        fix = (
            f"Add save_total_limit={room - 1}"
            if room > 2
            else "Add save_total_limit=1 and save_only_model=True"
            if 2 * size <= free
            else "Free space, or set output_dir to a larger disk"
        )
        yield say(
            folder[1],
            f"{count} checkpoint{'s' if count > 1 else ''} of {gib(each)}{told} go to {folder[0]}, where {gib(free)} are free",
            f"{fix}; `df -h {nearest_there(folder[0])}` shows the disk",
        )


def _count(subject: Subject) -> int:
    """Return how many checkpoints there will be at the same time; 1 where that cannot be known."""
    strategy = subject.setting("save_strategy")
    if strategy is not None and strategy.value == "no":
        return 1
    limit = subject.number("save_total_limit")
    total = None
    steps, epochs = subject.number("max_steps"), subject.number("num_train_epochs")
    if strategy is not None and strategy.value == "epoch":
        total = epochs
    elif steps is not None and steps > 0:
        every = subject.number("save_steps") or 500
        total = steps / every if every >= 1 else 1 / every
    total = None if total is None else max(1, math.ceil(total))
    if limit is not None and limit >= 1:
        return int(min(limit + 1, total or limit + 1))
    return total or 1

"""Which trainers run a loop of their own, by what they lack, and which of those can be taken back to an update."""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

from ..engines import SEVERAL_PROCESSES, engines_of

NEEDED = (
    ("dataloader", "to give an update its batch again"),
    ("args.num_total_batches", "to train the updates that are left"),
    ("args.batch_size", "to count episodes once"),
    ("state.episode", "to count episodes once"),
    ("accelerator.backward", "to see each loss"),
    ("accelerator.accumulate", "to tell the rollout from the training"),
    ("accelerator.step", "to accumulate as many micro-batches as before"),
    ("optimizer.step", "to hold an update back"),
    ("callback_handler.on_train_begin", "to put a state back"),
)
"""What a loop of its own must have, as paths from the trainer, to be entered again at an update."""


def has_own_loop(trainer: Any) -> bool:
    """Say whether `train` is neither transformers' own nor a way into it: it cannot be asked to resume."""
    train = getattr(type(trainer), "train", None)
    code = getattr(inspect.unwrap(train), "__code__", None) if callable(train) else None
    if train is None or code is None or getattr(train, "__module__", "") == "transformers.trainer":
        return False
    parameters = inspect.signature(train).parameters.values()
    can_resume = any(
        each.name == "resume_from_checkpoint" or each.kind in {each.VAR_KEYWORD, each.VAR_POSITIONAL}
        for each in parameters
    )
    # Whoever calls the method it has replaced, or the loop itself, runs the usual loop.
    return not can_resume and not {"super", "_inner_training_loop"} & set(code.co_names)


def why_only_watched(trainer: Any) -> str | None:
    """Say why an update of this trainer cannot be returned to; None where it can."""
    kind = type(trainer).__name__
    nothing = object()
    for path, needed_for in NEEDED:
        found = reduce(lambda owner, name: getattr(owner, name, nothing), path.split("."), trainer)
        if found is nothing:
            return f"{kind} runs a loop of its own and has no {path}, needed {needed_for}"
    for engine in engines_of(trainer):
        if engine.steps_itself or engine.saves_together or engine is SEVERAL_PROCESSES:
            return f"{kind} runs a loop of its own, under {engine.name}"
    return None

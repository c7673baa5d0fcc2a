"""Spare a trainer the walk through all modules that puts a model into training mode before every micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tensors.known_modules import KnownModules

NAME = "train"


@contextmanager
def already_training(model: Any, modules: KnownModules) -> Iterator[None]:
    """Let the next `model.train()` return at once where every module is in that mode.

    It is the model's own method again as soon as it was called: nobody is to find ours in a copy of the model.
    """
    own = vars(model)
    if NAME in own or not modules.are_training(model):
        yield
        return

    def train(mode: bool = True) -> Any:
        del own[NAME]
        return model if mode else model.train(mode)

    own[NAME] = train
    try:
        yield
    finally:
        if own.get(NAME) is train:
            del own[NAME]

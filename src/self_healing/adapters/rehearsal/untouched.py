"""A trainer and everything that hangs on it, put back after a rehearsal as if there had been none."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from ..rollback.trainer_capture import TrainerCapture
from .object_state import ObjectState


class Untouched:
    """All that a few real steps, an evaluation and a save may change."""

    def __init__(self, trainer: Any) -> None:
        from ...tensors.copies import Clones

        # On an accelerator the copies go to the CPU: the rehearsal must not run out of memory because of them.
        copies = Clones(None if trainer.args.device.type == "cpu" else "cpu")
        self._capture = TrainerCapture(trainer, copies=copies, only_trainable=True)
        modules = {id(each): each for model in _models(trainer) for each in model.modules()}
        self._structure = ObjectState(
            trainer,
            trainer.accelerator,
            trainer.accelerator.gradient_state,
            trainer.callback_handler,
            *modules.values(),
            *_optimizers(trainer.optimizer),
            *(thing for thing in _others(trainer) if thing is not None),
        )
        self.data = ObjectState(
            *(thing for thing in (trainer.train_dataset, trainer.data_collator) if thing is not None), depth=3
        )
        self.eval_data = ObjectState(*([] if trainer.eval_dataset is None else [trainer.eval_dataset]), depth=3)

    def nbytes(self) -> int:
        """Return how much memory the copies take."""
        return self._capture.nbytes()

    def restore(self) -> None:
        """Put all back; a part that fails does not keep the others from it."""
        with ExitStack() as stack:  # the last pushed is put back first: who belongs to whom before what it holds
            stack.callback(self._capture.restore)
            for part in (self.data, self.eval_data, self._structure):
                stack.callback(part.restore)


def _models(trainer: Any) -> list[Any]:
    return [trainer.model, *([] if trainer.model_wrapped is trainer.model else [trainer.model_wrapped])]


def _optimizers(optimizer: Any) -> list[Any]:
    """Return the optimizer and those it wraps."""
    found: list[Any] = []
    while optimizer is not None and optimizer not in found:
        found.append(optimizer)
        optimizer = vars(optimizer).get("optimizer")
    return found


def _others(trainer: Any) -> list[Any]:
    """Return what saving and preparing write into: configurations, the tokenizer, the memory tracker."""
    model = trainer.model
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    names = ("config", "generation_config")
    configurations = [getattr(inner, name, None) for name in names]
    tracker, processing = getattr(trainer, "_memory_tracker", None), getattr(trainer, "processing_class", None)
    return [*configurations, tracker, processing, trainer.lr_scheduler]

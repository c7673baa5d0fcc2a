"""What callbacks keep that belongs to a state: averages of weights and the like, in whatever form they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...tensors.copies import Copies


class CallbackTensors:
    """The tensors of all callbacks but ours at one moment, with the numbers beside them.

    A callback without a tensor is not touched: what it counts may be of anything, such as of what it has reported.
    """

    def __init__(self, trainer: Any, copies: Copies) -> None:
        from ...tensors.held_tensors import Collector, HeldAttributes, OfTheTraining

        models = [getattr(trainer, name, None) for name in ("model", "model_wrapped", "ref_model")]
        collector = Collector(OfTheTraining(models), copies)
        self._held = [
            HeldAttributes(callback, collector, f"callback.{type(callback).__name__}")
            for callback in callbacks_of(trainer)
            if not type(callback).__module__.startswith(f"{__name__.partition('.')[0]}.")
        ]

    def restore(self) -> None:
        """Put them back."""
        for held in self._held:
            held.back()


def nbytes_in_callbacks(trainer: Any) -> int:
    """Return how much memory the tensors of callbacks take in a state."""
    from ...tensors.held_tensors import Sizes

    sizes = Sizes()
    CallbackTensors(trainer, sizes)
    return sizes.nbytes


def callbacks_of(trainer: Any) -> list[Any]:
    """Return the callbacks of a trainer; a loop of somebody's own has none."""
    handler = getattr(trainer, "callback_handler", None)
    return [] if handler is None else list(handler.callbacks)


def with_state(trainer: Any) -> list[Any]:
    """Return the callbacks that have a state of their own to export."""
    callbacks = callbacks_of(trainer)
    if not callbacks:
        return []
    from transformers.trainer_callback import ExportableState

    return [callback for callback in callbacks if isinstance(callback, ExportableState)]

"""The trainer's count of floating-point operations, without measuring all parameters anew for every micro-batch.

That took 0.2 ms per micro-batch for a Llama of 8 layers, about as much host time as all that the guard does. They are
measured again when the model is another one, or has more or fewer parameters than it had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..wrapping import Wrapping

if TYPE_CHECKING:
    from ...tensors.known_modules import KnownModules


class FlopCount:
    """Remembers what one element of the inputs costs."""

    def __init__(self, trainer: Any, modules: KnownModules) -> None:
        self._trainer = trainer
        self._modules = modules
        self._known: tuple[Any, int, int] | None = None
        """Model, how many parameters it has, and operations per element of its main input."""

    def attach(self, wrapping: Wrapping) -> None:
        """Replace the trainer's method where it is the one of transformers."""
        self._known = None
        if wrapping.is_of_transformers(self._trainer, "floating_point_ops"):
            wrapping.wrap(self._trainer, "floating_point_ops", self._around)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def floating_point_ops(inputs: Any) -> Any:
            model = self._trainer.model
            name = getattr(model, "main_input_name", "input_ids")
            if name not in inputs or not hasattr(inputs[name], "numel"):
                return original(inputs)
            size, parameters = inputs[name].numel(), len(self._modules.parameters_seen(model))
            known = self._known
            if known is not None and known[0] is model and known[1] == parameters:
                return size * known[2]
            count = original(inputs)
            if size and isinstance(count, int) and count % size == 0:
                self._known = (model, parameters, count // size)
            return count

        return floating_point_ops

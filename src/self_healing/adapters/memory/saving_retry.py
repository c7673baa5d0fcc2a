"""Out of memory while saving: the weights are copied to the CPU one by one and saved from there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..wrapping import Wrapping
from .memory_errors import RETRIABLE, is_out_of_memory, let_go
from .memory_events import MemoryEvent

logger = logging.getLogger("self_healing.memory")


class SavingRetry:
    """Gets the saves of one trainer through when memory runs out."""

    def __init__(self, trainer: Any, *, on_event: Callable[[MemoryEvent], None] = lambda _event: None) -> None:
        self.trainer = trainer
        self.on_event = on_event

    def attach(self, wrapping: Wrapping) -> None:
        """Replace `_save`; it is the original again when `wrapping` is restored."""
        if hasattr(self.trainer, "_save"):  # what is done without is said in `relied_on`
            wrapping.wrap(self.trainer, "_save", self._around_save)

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _save(output_dir: Any = None, state_dict: Any = None) -> Any:
            try:
                return original(output_dir, state_dict)
            except RETRIABLE as error:
                if not is_out_of_memory(error):
                    raise
                failure = error
            let_go(failure)
            weights = self.trainer.model.state_dict() if state_dict is None else state_dict
            text = "out of memory while saving: the weights go through the CPU, one after another"
            step = int(self.trainer.state.global_step)
            logger.warning("step %d: %s", step, text)
            result = original(output_dir, on_cpu(weights))
            self.on_event(MemoryEvent("recovered", step, 0, "saving", "through the CPU", 0.0, text))
            return result

        return _save


def on_cpu(weights: Mapping[str, Any], copy: Callable[[Any], Any] = lambda storage: storage.cpu()) -> dict[str, Any]:
    """Copy tensors to the CPU; those that share memory share it afterwards too, so that tied weights are saved once."""
    import torch

    storages: dict[tuple[Any, int], Any] = {}
    copied: dict[str, Any] = {}
    for name, value in weights.items():
        if not isinstance(value, torch.Tensor):
            copied[name] = value
            continue
        storage = value.untyped_storage()
        key = (value.device, storage.data_ptr())
        if key not in storages:
            storages[key] = copy(storage)
        copied[name] = torch.empty(0, dtype=value.dtype).set_(
            storages[key], value.storage_offset(), value.shape, value.stride()
        )
    return copied

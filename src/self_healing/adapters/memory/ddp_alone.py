"""A rank of DistributedDataParallel that runs a pass again which the others do not.

Sound as long as it makes no collective that they do not make. DDP has three: the forward pass sends buffers from rank 0,
once in a step; a loss may have some of its own; and the backward pass that ends a step shares gradients. The first is
switched off for passes that come after one in which it was made. A backward pass that shares gradients cannot be run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..wrapping import Wrapping


class DdpAlone:
    """Counts the times a model has shared its buffers, and keeps a pass that is run again from doing so."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._shared = 0
        self._before = 0
        self._wrapping = Wrapping()
        if hasattr(model, "_sync_buffers"):
            self._wrapping.wrap(model, "_sync_buffers", self._around)

    def begins(self) -> None:
        """A micro-batch is run for the first time."""
        self._before = self._shared

    def again(self) -> None:
        """It is run again: what was shared is not shared a second time."""
        if self._shared > self._before:
            self._model.require_forward_param_sync = False

    @property
    def has_shared(self) -> bool:
        """Whether the micro-batch at hand has made others wait for it already."""
        return self._shared > self._before

    def end(self) -> None:
        """Put the model's method back."""
        self._wrapping.restore()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _sync_buffers(*args: Any, **kwargs: Any) -> Any:
            self._shared += 1
            return original(*args, **kwargs)

        return _sync_buffers


def why_not_alone(trainer: Any, *, shares_gradients: bool, phase: str) -> str | None:
    """Say why one of several processes cannot run a micro-batch again by itself; None where it can."""
    from ..engines import PLAIN
    from .known_losses import definer_of_loss

    accelerator = trainer.accelerator
    count = accelerator.num_processes
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type)).upper()
    if kind not in PLAIN:
        return f"{count} processes work on each pass together ({kind}) and cannot repeat it one by one"
    if definer_of_loss(trainer) != "Trainer":  # TRL's gather metrics of all processes while they compute a loss
        return f"{count} processes compare notes while they compute this loss, and cannot repeat it one by one"
    if shares_gradients and phase == "backward":
        return (
            f"it happened while gradients were shared by {count} processes, which cannot be begun anew by one of them"
        )
    return None

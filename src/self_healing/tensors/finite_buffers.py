"""Which buffers of a model have ceased to be finite since its training began.

A running mean that became NaN is in no loss of a training step: every evaluation and every checkpoint is worthless all
the same. Other buffers hold infinities by design, such as masks: what was not finite at first is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from .sharded import local_of

MEASURED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Numbers of which torch can tell everywhere whether they are finite."""


def floating_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that can cease to be finite, with their names: of what is sharded this process's part."""
    for name, buffer in model.named_buffers():
        if buffer.dtype in MEASURED and buffer.layout is torch.strided and not buffer.is_meta:
            yield name, local_of(buffer).detach()


class FiniteBuffers:
    """Remembers which buffers were finite when it was made, without waiting for the device."""

    def __init__(self, model: nn.Module) -> None:
        self._at_first = {name: torch.isfinite(buffer).all() for name, buffer in floating_buffers(model)}

    def broken(self, model: nn.Module, left_alone: Collection[str] = ()) -> list[str]:
        """Return the buffers that were finite at first and are not now; waits for the device."""
        return [
            name
            for name, buffer in floating_buffers(model)
            if name in self._at_first
            and name not in left_alone
            and not bool(torch.isfinite(buffer).all())
            and bool(self._at_first[name])
        ]

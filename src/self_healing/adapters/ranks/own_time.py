"""What a step takes one rank by itself, before it waits for the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..wrapping import Wrapping


class OwnTime:
    """Notes when the last backward pass of a step begins: in it gradients are reduced, and ranks wait for each other.

    Up to there are the data, every forward pass and the backward passes of other micro-batches. On a device that works by
    itself it is the time of the host; a rank whose device alone is slow is not seen.
    """

    def __init__(self) -> None:
        self._backward_s = 0.0

    def attach(self, accelerator: Any, changes: Wrapping) -> None:
        """Look at the clock before each backward pass."""
        changes.wrap(accelerator, "backward", self._around)

    def since(self, began_s: float) -> float:
        """Return what a step that began then has taken until its last backward pass; 0 where there was none."""
        return max(0.0, self._backward_s - began_s)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._backward_s = time.perf_counter()
            return original(*args, **kwargs)

        return backward

"""Draws for some rows of a batch that are those the whole batch would have made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class PartOfDraws(TorchFunctionMode):
    """Inside the block, one token drawn for each of the rows `start` to `end` is what a draw for all rows gives them.

    `torch.multinomial` draws one sample per row as the largest of probability over noise from an exponential distribution, with
    the noise of all rows made at once. Here the noise of all rows is made and that of these rows is used.
    """

    def __init__(self, start: int, end: int, rows: int) -> None:
        super().__init__()
        self.start, self.end, self.rows = start, end, rows
        self.count = 0
        """Draws so far."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer draws, and let everything else through."""
        if func in (torch.multinomial, torch.Tensor.multinomial) and self._is_one_per_row(args, kwargs or {}):
            self.count += 1
            return self._drawn(args[0])
        return func(*args, **(kwargs or {}))

    def _is_one_per_row(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        samples = args[1] if len(args) > 1 else kwargs.get("num_samples")
        return samples == 1 and bool(args) and args[0].ndim == 2 and args[0].shape[0] == self.end - self.start

    def _drawn(self, probabilities: torch.Tensor) -> torch.Tensor:
        bad = torch.isnan(probabilities).any() | torch.isinf(probabilities).any() | (probabilities < 0).any()
        if bool(bad):
            raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
        noise = torch.empty(self.rows, probabilities.shape[1], dtype=probabilities.dtype, device=probabilities.device)
        noise.exponential_()
        return (probabilities / noise[self.start : self.end]).argmax(dim=-1, keepdim=True)

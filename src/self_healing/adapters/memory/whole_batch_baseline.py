"""A baseline that is a mean over the whole batch, as KTO's: a piece of the batch must be given the batch's own.

`KTOTrainer` asks for the log-probabilities of mismatched answers twice per loss, of the policy and of the reference, and
uses nothing but the mean of their difference. Both are computed once for all rows, a few at a time, and given to every
piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .batch_cuts import Layout


class WholeBatchBaseline:
    """Answers of a family's `whole_batch_call` for the whole batch."""

    def __init__(self, layout: Layout, inputs: Mapping[str, Any], most_rows: int) -> None:
        self.layout = layout
        self.inputs = inputs
        self.most_rows = most_rows
        self._answers: list[Any] = []
        self._calls = 0

    def piece_begins(self) -> None:
        """Expect the policy's call again, then the reference's."""
        self._calls = 0

    def answer(self, original: Callable[..., Any], model: Any, batch: Mapping[str, Any]) -> Any:
        """Answer a call for all rows, whichever the batch holds."""
        if self._calls == len(self._answers):
            self._answers.append(self._for_all_rows(original, model, batch))
        self._calls += 1
        return self._answers[self._calls - 1]

    def _for_all_rows(self, original: Callable[..., Any], model: Any, batch: Mapping[str, Any]) -> Any:
        import torch

        answers = []
        for start in range(0, self.layout.rows, self.most_rows):
            part = self.layout.part(self.inputs, start, min(start + self.most_rows, self.layout.rows))
            device = next(value.device for value in batch.values() if isinstance(value, torch.Tensor))
            on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in part.items()}
            answers.append(original(model, on_device))
        return None if any(answer is None for answer in answers) else torch.cat(answers)

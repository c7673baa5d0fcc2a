"""The fault `poisoned-batches`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..fault import Expected, Fault, on_training_forward, with_loss_times


@dataclass(kw_only=True)
class PoisonedBatches(Fault):
    """Ten batches in a row hold noise, with losses thousands of times too large.

    The poison is in the data: whoever trains on these batches again meets it again, whoever leaves them out does not.
    Needs a loader without worker processes, in which nobody could count batches.
    """

    at_step: int = 25
    count: int = 10
    """How many batches."""
    factor: float = 3000.0
    """What their losses are multiplied by; with 1 the noise alone must do the harm."""

    is_transient = False
    needs_rollback = True
    expected = Expected(cause=("gradient-outlier",), actions=("rollback", "skip_batch"), excess=0.15)

    def plant(self, trainer: Any) -> None:
        """Put noise into the batches as they are collated, and have the model know them."""
        poisoning = trainer.data_collator = Poisoning(
            trainer.data_collator,
            range(self.at_step, self.at_step + self.count),
            vocabulary=int(trainer.model.config.vocab_size),
        )

        def spoil(step: int, inputs: dict[str, Any], output: Any) -> Any:
            return with_loss_times(output, self.factor) if poisoning.has_poisoned(inputs) else None

        on_training_forward(trainer, spoil)


class Poisoning:
    """A collator that replaces the tokens of some batches, counted as they come, by noise."""

    def __init__(self, collate: Callable[[Any], dict[str, Any]], which: range, *, vocabulary: int) -> None:
        self.collate = collate
        self.which = which
        self.vocabulary = vocabulary
        self._numbers: dict[bytes, int] = {}
        """A batch that is collated again, be it after a restart, is no new one."""
        self._poisoned: set[bytes] = set()

    def __call__(self, rows: Any) -> dict[str, Any]:
        """Collate."""
        batch = self.collate(rows)
        number = self._numbers.setdefault(content(batch), len(self._numbers))
        return self._poison(batch, number) if number in self.which else batch

    def has_poisoned(self, batch: dict[str, Any]) -> bool:
        """Say whether a batch is one of the poisoned ones."""
        return content(batch) in self._poisoned

    def _poison(self, batch: dict[str, Any], number: int) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(number)  # of its own: the run's random numbers stay what they are
        noise = torch.randint(self.vocabulary, batch["input_ids"].shape, generator=generator)
        poisoned = {**batch, "input_ids": noise, "labels": noise.clone()}
        self._poisoned.add(content(poisoned))
        return poisoned


def content(batch: dict[str, Any]) -> bytes:
    """Return what a batch is known by."""
    tokens: bytes = batch["input_ids"].cpu().numpy().tobytes()
    return tokens

"""What one optimizer step is computed from, kept until the step is known to be sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .trl_counters import BeforeGenerating, Counted, Counters
from .update_numbers import UpdateNumbers


@dataclass(slots=True)
class MicroBatch:
    """One forward and backward pass: its inputs as the model got them, and the random state it started from."""

    inputs: Any
    random_state: Any
    prepared: Any = None
    """What `_prepare_inputs` made of the inputs; generation trainers must not do that twice."""

    counted: Counted = field(default_factory=dict)
    """What the trainer counted while it prepared them, which it is not asked to do again."""

    put_back: Callable[[], None] | None = None
    """Puts back what a pass has changed in the model's buffers."""

    source: Any = None
    """What a loop of somebody's own has given them as, and what computes the loss of it."""

    def keep(self, prepared: Any, random_state: Any) -> None:
        """Remember prepared inputs; a copy of the mapping, since losses take entries out of theirs."""
        self.prepared = dict(prepared) if isinstance(prepared, Mapping) else prepared
        self.random_state = random_state

    def is_changed(self) -> bool:
        """Say whether a loss function of a loop's own has written into its batch: it cannot be run again as it was."""
        return self.source is not None and bool(self.source.data.is_changed())

    def again(self) -> Any:
        """Return the prepared inputs for another pass."""
        return dict(self.prepared) if isinstance(self.prepared, Mapping) else self.prepared


@dataclass(slots=True)
class Window:
    """The micro-batches of one optimizer step."""

    step: int
    """Global step before the update."""
    num_items: Any
    counters: Counters
    """What the trainer had counted before the step."""
    loss_sum: Any
    """The trainer's sum of losses before the step, from which it logs; None where it keeps none within reach."""
    buffers: dict[int, Any] = field(default_factory=dict)
    """The model's changing buffers before the step."""
    generation: BeforeGenerating | None = None
    """Where a trainer that generates its own data stood before the step."""
    micro_batches: list[MicroBatch] = field(default_factory=list)
    numbers: UpdateNumbers = field(default_factory=UpdateNumbers)
    """By what each parameter group stepped at the update."""
    loss: Any = None
    """Sum of the losses, on the device; not finite where one of them is not."""
    stood: Any = None
    """Where a loop stood before the step that has to hand out its batch again, for we cannot run it ourselves."""
    losses: list[Any] = field(default_factory=list)
    """The losses as they are counted: one that is not finite counts as zero."""

    def count_nothing(self, trainer: Any) -> None:
        """Take back what the trainer has counted, drawn and generated since the step began."""
        self.counters.restore_before_preparing(trainer)
        if self.generation is not None:
            self.generation.restore(trainer)
        elif self.micro_batches[0].random_state is not None:
            self.micro_batches[0].random_state.restore()

    @property
    def inputs(self) -> list[Any]:
        """The micro-batches as the data loader gave them."""
        return [micro_batch.inputs for micro_batch in self.micro_batches]

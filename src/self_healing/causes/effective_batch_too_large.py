"""The cause `effective-batch-too-large`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

ORDINARY = 256
LARGE = 2048


class EffectiveBatchTooLarge(Cause):
    """The effective batch is far larger than intended.

    The effective batch is the micro-batch times the accumulation steps times the number of GPUs, and one of the
    three is easily forgotten when a recipe moves to more GPUs. Learning rate and batch then no longer fit together
    and spikes follow. How much of it is the batch is disputed: treat it as a thing to check.
    """

    explains = ("loss-spike", "gradient-explosion", "loss-plateau")
    confirm = "Compute micro_batch_size * gradient_accumulation_steps * num_gpus and compare it with the recipe."
    fixes = (
        "Set micro_batch_size * gradient_accumulation_steps * num_gpus to the recipe's, often 16 to 256 in fine-tuning.",
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Compare the effective batch with what is common in fine-tuning."""
        batch = number(past, "effective_batch_size")
        if batch is None:
            return Evidence(weight=0.2)
        if batch <= ORDINARY:
            return None
        found = (f"the effective batch is {batch:g} records",)
        return Evidence(weight=0.4 if batch > LARGE else 0.3, found=found)

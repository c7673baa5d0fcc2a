"""The cause `nothing-trainable`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, number

ALL = 0.99


class NothingTrainable(Cause):
    """No parameter gets a gradient: nothing is trainable, or everything is masked out of the loss.

    An adapter that is not attached, a base model frozen before the adapter was added, or completions that are all cut off
    and left out of the loss.
    """

    explains = ("policy-gradient-zero",)
    confirm = "Count the parameters with requires_grad: none settles it; else look at the mask of one batch."
    fixes = (
        "Attach the adapter (peft_config) or unfreeze the model; call enable_input_require_grads() with checkpointing.",
        "Raise max_completion_length, or switch mask_truncated_completions off.",
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at the number of trainable parameters, the mask, and the norm itself."""
        norm, trainable = finite_latest(past, "grad_norm"), number(past, "trainable_parameters")
        if norm is not None and norm > 0.0:
            return None
        if trainable == 0:
            return Evidence(weight=0.9, found=("no parameter is trainable",))
        cut = finite_latest(past, "completions/clipped_ratio")
        if cut is not None and cut >= ALL:
            return Evidence(weight=0.5, found=("every completion was cut off; masked ones have no gradient",))
        return Evidence(weight=0.4)

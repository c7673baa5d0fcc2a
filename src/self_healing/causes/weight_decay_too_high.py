"""The cause `weight-decay-too-high`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

HIGH = 0.1


class WeightDecayTooHigh(Cause):
    """Weight decay pulls the weights back as fast as they learn.

    The usual 0.01 is nearly always fine. Above 0.1 the pull can outweigh the gradient, most of all in LoRA, whose
    matrices start at zero and have to grow to have any effect.
    """

    explains = ("loss-plateau", "gradient-vanishing")
    confirm = "Run on with a weight decay of 0.01: a loss that starts to fall settles it."
    fixes = ("Set weight_decay to 0.01; keep it at or below 0.1, above all for LoRA.",)
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Compare the configured decay with usual values."""
        decay = number(past, "weight_decay")
        if decay is None:
            return Evidence(weight=0.2)
        if decay <= HIGH:
            return None
        lora = past.facts.get("lora") is True
        found = (f"weight decay is {decay:g}{' on LoRA weights' if lora else ''}; 0.01 is usual",)
        return Evidence(weight=0.6 if lora else 0.45, found=found)

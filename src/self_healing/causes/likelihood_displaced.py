"""The cause `likelihood-displaced`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import growth

LONG = 64


class LikelihoodDisplaced(Cause):
    """The margin grows by making both answers unlikely, and the probability goes to answers nobody has seen.

    Where chosen and rejected answers are alike, what lowers one lowers the other. The loss knows only their difference and
    is content.
    """

    explains = ("preference-likelihood-falling", "preference-nll-rising")
    confirm = "Generate for some prompts of the training data: answers that resemble neither column settle it."
    fixes = (
        "Lower the learning rate, train for one epoch, and raise beta to 0.3 to 0.5 (Axolotl: rl_beta).",
        "Add the likelihood of chosen answers: loss_type ['sigmoid', 'sft'] (TRL), rpo_alpha (Axolotl), cpo_alpha (CPO).",
        "Leave out pairs whose answers are nearly the same.",
    )
    references = ("https://arxiv.org/abs/2410.08847", "https://arxiv.org/abs/2402.13228")

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look whether the margins grow while chosen answers become unlikely."""
        chosen, margins = past.last("logps/chosen", LONG), past.last("rewards/margins", LONG)
        fallen = growth([-value for value in chosen])
        if chosen and fallen < 1.0:
            return None
        grown = growth(margins)
        if fallen > 1.05 and grown > 1.0:
            return Evidence(
                weight=0.6, found=(f"margins grew {grown:.1f} times while chosen answers became less likely",)
            )
        return Evidence(weight=0.35)

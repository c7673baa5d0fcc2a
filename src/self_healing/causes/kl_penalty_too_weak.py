"""The cause `kl-penalty-too-weak`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, number

FAR = 2.0
STRONG = 0.1


class KlPenaltyTooWeak(Cause):
    """Nothing, or too little, holds the policy to its reference.

    Without a KL penalty the reward alone decides where the policy goes, and a flaw of the reward function is followed as
    far as it leads. Many recipes train without one on rewards that can be verified; with a learned reward it is needed.
    """

    explains = (
        "kl-runaway", "entropy-collapse", "entropy-runaway", "reward-collapse", "length-runaway", "length-collapse",
    )  # fmt: skip
    confirm = "Train on from before the trouble with a KL penalty of 0.04: if it stays away, that was missing."
    fixes = (
        "Set beta to 0.01 to 0.1 (TRL: GRPOConfig; Axolotl: trl.beta); for PPO kl_coef, for DPO and KTO beta or rl_beta.",
        "Lower the learning rate: the penalty holds slow policies only.",
        "Set sync_ref_model for long runs, so that the reference follows.",
    )
    references = ("https://arxiv.org/abs/2210.10760",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at beta, where it is known, and at how far the policy is."""
        beta, kl = number(past, "beta"), finite_latest(past, "kl")
        if beta is not None and beta >= STRONG:
            return None
        found = []
        if beta is not None:
            found.append(f"beta is {beta:g}")
        if kl is not None and kl > FAR:
            found.append(f"the policy is {kl:.3g} nats per token from its reference")
        if not found:
            return Evidence(weight=0.3)
        return Evidence(weight=0.4 + 0.1 * len(found), found=tuple(found))

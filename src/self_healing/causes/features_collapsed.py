"""The cause `features-collapsed`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

COLLAPSED, HEALTHY = 1.0, 0.1


class FeaturesCollapsed(Cause):
    """Completions of a prompt have nearly the same features, so that the diversity term outweighs everything else.

    In energy-based fine-tuning completions should match the target's features and differ from one another. A diversity term
    of 0.01 to 0.1 is healthy; above 1.0 the policy has settled on one completion.
    """

    explains = ("ebft-off-course",)
    confirm = "Read the completions of one prompt: near copies of each other settle it."
    fixes = (
        "Sample at a higher temperature, with more num_generations.",
        "Lower the learning rate.",
        "Raise the weight of the diversity term in the ebft section.",
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Read the diversity term."""
        diversity = finite_latest(past, "ebft/diversity")
        if diversity is None:
            return Evidence(weight=0.3)
        if diversity <= HEALTHY:
            return None
        found = (f"the diversity term is {diversity:.3g}; 0.01 to 0.1 is healthy",)
        return Evidence(weight=0.65 if diversity > COLLAPSED else 0.4, found=found)

"""The cause `preference-pairs-swapped`."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import number

WINDOW = 32
BELOW, ABOVE = 0.45, 0.55


class PreferencePairsSwapped(Cause):
    """Chosen and rejected are swapped, in all pairs or in so many that they contradict one another.

    Converted data sets disagree on which column comes first, scores may mean better or worse, and judges who agree in half
    of the cases make labels of noise.
    """

    explains = ("preference-accuracy-stuck", "dpo-at-chance", "odds-ratio-falling", "preference-margin-collapse")
    confirm = "Read ten pairs and say which answer is better without looking at the label."
    fixes = (
        "Swap the columns where they are the wrong way round.",
        "Leave out pairs that judges disagree on, or set label_smoothing to the share of wrong labels (loss_type 'robust').",
    )
    references = ("https://arxiv.org/abs/2403.00409",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look how often chosen answers are preferred."""
        swapped = number(past, "pairs_swapped")
        accuracies = past.last("rewards/accuracies", WINDOW) or past.last("accuracy", WINDOW)
        if swapped is not None and swapped >= 0.5:
            return Evidence(weight=0.8, found=(f"{swapped:.0%} of the pairs look swapped",))
        if not accuracies:
            return Evidence(weight=0.2)
        mean = sum(accuracies) / len(accuracies)
        if mean > ABOVE:
            return None
        if mean < BELOW:
            return Evidence(
                weight=0.6, found=(f"chosen answers are preferred in {mean:.0%} of the pairs: less than by chance",)
            )
        return Evidence(weight=0.4, found=(f"chosen answers are preferred in {mean:.0%} of the pairs",))

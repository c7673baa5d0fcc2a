"""The cause `found-by-probe`: what running the same step again under observation has shown."""

from __future__ import annotations

from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident

WEIGHTS = {"weights": 0.95, "data": 0.9, "overflow": 0.8, "transient": 0.8}
"""How sure each answer of the probe makes us."""


class FoundByProbe(Cause):
    """The same step was run again and watched: it says where the first non-finite number comes from.

    The other causes of a NaN are suspicions from the numbers of the run. This one is an observation: the step was
    repeated with the same data and the same random numbers, module by module and row by row.
    """

    explains = ("loss-not-finite", "gradient-not-finite", "weights-not-finite")
    confirm = (
        "Look at the rows or the module it names; the finding is reproducible from the batch and the random state."
    )
    fixes = (
        "data: fix or remove the records it names, and look for others like them (empty, fully masked, out of range).",
        "overflow: use bf16 or fp32 for the module it names, lower the learning rate, or clip harder.",
        "weights: return to a checkpoint from before; nothing computed from these weights means anything.",
        "transient: nothing to fix in the recipe; repeated ones point at the hardware.",
    )
    references = ("https://docs.axolotl.ai/docs/training_stability.html",)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Report what the probe found, if one was made."""
        kind, because = past.facts.get("nan_kind"), past.facts.get("nan_because")
        if not isinstance(kind, str) or kind not in WEIGHTS:
            return None
        return Evidence(weight=WEIGHTS[kind], found=(str(because),))

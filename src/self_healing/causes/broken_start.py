"""The cause `broken-start`."""

from __future__ import annotations

from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident

FACT = "not_finite_at_start"
"""What of the weights was not finite before the first step, by name."""


class BrokenStart(Cause):
    """The weights that training began with are not finite.

    A download that was cut off or damaged, a checkpoint of a run that had diverged, weights cast to a type that cannot hold
    them, memory that nothing initialised, or code that writes to the weights before the first step. There is no earlier
    state to go back to.
    """

    explains = ("weights-not-finite", "loss-not-finite", "gradient-not-finite", "unexplained-state")
    confirm = "Load the model as the run does and look for values that are not finite before anything is trained."
    fixes = (
        "Look at how the model was loaded: its files, warnings of newly initialised weights, its dtype.",
        "Initialise what was made without values (torch.empty, meta tensors, modules of your own).",
        "Train from another checkpoint.",
    )
    remedy = (rung(StopRun()),)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Go by what was seen before the first step."""
        broken = past.facts.get(FACT)
        return Evidence(weight=0.99, found=(f"before the first step: {broken}",)) if broken else None

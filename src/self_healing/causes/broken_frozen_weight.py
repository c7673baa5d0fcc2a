"""The cause `broken-frozen-weight`."""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident


class BrokenFrozenWeight(Cause):
    """A weight that nothing trains is not what it was: a flipped bit, or memory that was overwritten.

    States and checkpoints of adapters hold only what trains, so that no return and no other data bring it back. A new
    process does: it loads the model from its files, and goes on with what was trained before the weight broke.
    """

    explains = (
        "unexplained-state",
        "weights-not-finite",
        "loss-not-finite",
        "gradient-not-finite",
        "eval-not-finite",
        "loss-spike",
        "loss-divergence",
        "gradient-explosion",
    )
    confirm = "Load the model from its files once more, and compare the weight that is named with the one in memory."
    fixes = (
        'Start the script again with `resume_from_checkpoint="auto"`: what does not train is loaded anew from its files.',
        "Where it comes back on the same machine, have its memory tested (`nvidia-smi -q -d ECC`, `dcgmi diag`).",
        'Where code of yours writes to weights that do not train, switch the rule off: `ignore=("unexplained-state",)`.',
    )
    remedy = (rung(RestartProcess(), success=0.95), rung(StopRun()))
    is_certain = True

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Report what an audit of these weights has found."""
        broken = past.facts.get("frozen_broken")
        return Evidence(weight=0.99, found=(str(broken),)) if broken else None

"""The cause `data-exhausted`."""

from __future__ import annotations

from ..actions.alert import Alert
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest, number

SPENT = 0.02
UNDER_WAY = 0.1


class DataExhausted(Cause):
    """The data or the schedule has come to its end before the run has.

    A stream that is not repeated runs dry and the loop waits or stops; a schedule computed for fewer steps than are
    run leaves a learning rate of zero, and the loss stands still however healthy everything else looks.
    """

    explains = ("loss-plateau", "learning-rate-unexpected", "step-stalled", "throughput-drop")
    confirm = (
        "Compare records times epochs divided by the effective batch with max_steps, and with the schedule's length."
    )
    fixes = (
        "Set max_steps, or the number of epochs, to what the data really holds, or repeat the stream.",
        "Give the schedule the same number of steps as the run.",
    )
    remedy = (rung(Alert(), success=0.2),)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look at how far the schedule has come down, and how far the run has got."""
        rate, total = finite_latest(past, "learning_rate"), number(past, "max_steps")
        peak = max([rate or 0.0, *past.last("learning_rate")])
        if incident.name in ("step-stalled", "throughput-drop"):
            if total is not None and incident.step >= total:
                return Evidence(weight=0.5, found=(f"step {incident.step} of {total:g} was reached",))
            return Evidence(weight=0.2)
        if rate is None or peak <= 0:
            return Evidence(weight=0.2)
        if rate > UNDER_WAY * peak:
            return None
        if rate > SPENT * peak:
            return Evidence(weight=0.3)
        where = f"at step {incident.step}" + (f" of {total:g}" if total is not None else "")
        return Evidence(weight=0.55, found=(f"the learning rate is down to {rate:.3g} from {peak:.3g} {where}",))

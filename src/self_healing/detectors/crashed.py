"""The rule `crashed`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.restart_process import RestartProcess
from ..actions.roll_back import RollBack
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Raised, Signal


@dataclass(frozen=True, kw_only=True)
class Crashed(Detector):
    """An exception was raised in training.

    ## Why it matters
    Without help it ends the run. The exception's class and text, matched against the patterns, decide what kind of
    failure it is and what may help; an unknown one gets a single faithful retry, and so do two others soon after it.

    ## What to try
    1. Read the last exception from the bottom: `heal diagnose` on the log names the cause and its fix.
    2. Start again from the newest whole checkpoint once the cause is gone.

    ## False alarms
    None: an exception that reaches the adapter would have ended the run.

    ## References
    - ByteRobust, arXiv:2509.16293: the same exception at the same place twice is a bug, not bad luck
    """

    failure = FailureType.CRASH
    fine = "script_error"
    severity = Severity.ERROR
    listens = (Raised,)
    remedy = (
        rung(RollBack(), success=0.3, repeats=3),
        rung(RestartProcess(), success=0.3),
        rung(StopRun(), success=1.0),
    )
    examples = (
        fires("any exception", signals=(Raised(step=3, exception="builtins.KeyError", message="'labels'"),), at_step=3),
        quiet("numbers alone", loss=[2.0, 1.9]),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Turn the exception into an incident; the patterns tell what it means."""
        assert isinstance(now, Raised)
        first_line = now.message.strip().split("\n", 1)[0][:300]
        where = f" at {now.where}" if now.where else ""
        return self.incident(now, f"{now.exception}: {first_line}{where}")

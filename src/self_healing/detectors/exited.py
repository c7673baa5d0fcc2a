"""The rule `exited`."""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass, replace

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Exited as ProcessExited
from ..core.signal import Signal

PREEMPTED = 75
"""The exit code by which our own runs say that they saved their state and may be started again."""

KINDS: dict[int, tuple[FailureType, str]] = {
    -9: (FailureType.CRASH, "killed_unknown"),
    -11: (FailureType.CRASH, "segfault"),
    -7: (FailureType.CRASH, "oom_shm"),
    -15: (FailureType.PREEMPTED, "preempted"),
    -2: (FailureType.OTHER, "user_interrupt"),
    PREEMPTED: (FailureType.PREEMPTED, "preempted"),
}


@dataclass(frozen=True, kw_only=True)
class Exited(Detector):
    """A training process ended before its work was done.

    ## Why it matters
    A kill, a segmentation fault or a dead device context cannot be healed inside the process. The exit status and
    the last lines it printed are all there is to find the cause with.

    ## What to try
    1. Read what stands before the end of the log: `heal diagnose` tells the cause from what it dragged down.
    2. After a signal 9 look for the kernel's or the scheduler's word on memory (`dmesg`, `sacct`).

    ## False alarms
    None for a process that was asked to stop or had finished: the supervisor marks that as expected.

    ## References
    - signal(7): exit by a signal is reported as its negative number
    """

    failure = FailureType.CRASH
    fine = "unknown_child_failure"
    severity = Severity.ERROR
    listens = (ProcessExited,)
    remedy = (rung(RestartProcess(), success=0.6), rung(StopRun(), success=1.0))
    examples = (
        fires("killed", signals=(ProcessExited(step=7, code=-9),), at_step=7),
        fires("an error", signals=(ProcessExited(step=7, code=1, last_lines=("ValueError: bad",)),), at_step=7),
        quiet("finished", signals=(ProcessExited(step=7, code=0),)),
        quiet("stopped by us", signals=(ProcessExited(step=7, code=-15, expected=True),)),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Turn the exit into an incident; the patterns look at what was printed last."""
        assert isinstance(now, ProcessExited)
        if now.expected or now.code == 0:
            return None
        failure, fine = KINDS.get(now.code, (self.failure, self.fine))
        text = "\n".join(now.last_lines)
        incident = self.incident(now, f"the process ended: {_describe(now.code)}", fine=fine, text=text, code=now.code)
        return replace(incident, failure=failure)


def _describe(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signals.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"

"""The rule `heartbeat-lost`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Heartbeat, Signal, Tick

_ALIVE = tuple(Heartbeat(step=s, time_s=10.0 * s) for s in range(5))


@dataclass(frozen=True, kw_only=True)
class HeartbeatLost(Detector):
    """A process that gave signs of life has gone silent.

    ## Why it matters
    A stopped or wedged process neither exits nor raises: silence is the only symptom. Unlike `step-stalled` this
    rule looks at any sign of life, so that a long evaluation which still beats is not taken for a hang.

    ## What to try
    1. See where it hangs: `py-spy dump --pid`, and `TORCH_NCCL_TRACE_BUFFER_SIZE` for collectives.
    2. Look at the machine: devices that fell off the bus, a file system that does not answer.

    ## False alarms
    A machine that was suspended, or a file system that froze, silence the heartbeat too.

    ## References
    - NVIDIA resiliency extension: heartbeat time-outs
    """

    silence_s: float = 300.0
    """Seconds without any sign of life, after there had been one, that mean the process is lost."""

    failure = FailureType.HANG
    fine = "hang"
    severity = Severity.ERROR
    listens = (Tick,)
    patience_s = 300.0
    remedy = (rung(RestartProcess(), success=0.8), rung(StopRun(), success=1.0))
    examples = (
        fires("silent for ten minutes", signals=(*_ALIVE, Tick(step=4, time_s=640.0)), at_step=4),
        quiet("a late beat", signals=(*_ALIVE, Tick(step=4, time_s=140.0))),
        quiet("never heard of", signals=(Tick(step=0, time_s=9000.0),)),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire on a tick that comes too long after the last sign of life."""
        if past.last_beat_s is None or now.time_s - past.last_beat_s <= self.silence_s:
            return None
        silent_s = now.time_s - past.last_beat_s
        because = f"no sign of life for {silent_s:.0f} s while {past.phase or 'training'}"
        return self.incident(now, because, silent_s=silent_s)

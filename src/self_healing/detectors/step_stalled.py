"""The rule `step-stalled`."""

from __future__ import annotations

from dataclasses import dataclass

from ..actions.alert import Alert
from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Metrics, Signal, Tick

_STEADY = tuple(Metrics(step=s, time_s=float(s), values={"loss": 2.0, "step_time_s": 1.0}) for s in range(20))


@dataclass(frozen=True, kw_only=True)
class StepStalled(Detector):
    """No step has completed for much longer than usual.

    ## Why it matters
    A hung collective or a blocked loader holds every GPU and prints nothing; default time-outs are 10 to 45 minutes.

    ## What to try
    1. See where it hangs: `py-spy dump --pid`.
    2. Look at the loader (`dataloader_num_workers`, network file systems) and at collectives that wait for one
       rank.

    ## False alarms
    Compilation, a first evaluation or a slow save take longer than any step before them. The limit follows the
    slowest step seen, and is never below `shortest_s`.

    ## References
    - Unicron, arXiv:2401.00134: three times the mean iteration time
    - NVIDIA resiliency extension: five times the longest observed section
    """

    shortest_s: float = 60.0
    """Never call a silence shorter than this a stall."""
    times_longest: float = 5.0
    """Silence, in units of the slowest step seen, that is a stall."""
    first_s: float = 1800.0
    """Silence that is a stall before any step time is known."""

    failure = FailureType.HANG
    fine = "stalled"
    severity = Severity.ERROR
    listens = (Tick,)
    patience_s = 300.0
    remedy = (rung(Alert(), success=0.1), rung(RestartProcess(), success=0.8), rung(StopRun(), success=1.0))
    examples = (
        fires(
            "ninety seconds after one-second steps", signals=(*_STEADY, Tick(step=19, time_s=19.0 + 90.0)), at_step=19
        ),
        quiet("a short pause", signals=(*_STEADY, Tick(step=19, time_s=19.0 + 30.0))),
        quiet(
            "still compiling", signals=(Metrics(step=0, time_s=0.0, values={"loss": 2.0}), Tick(step=0, time_s=600.0))
        ),
    )

    def check(self, now: Signal, past: History) -> Incident | None:
        """Fire on a tick that comes too long after the last completed step."""
        if past.time_s is None:
            return None
        silent_s = now.time_s - past.time_s
        step_times = past.last("step_time_s")
        limit_s = max(self.shortest_s, self.times_longest * max(step_times)) if step_times else self.first_s
        if silent_s <= limit_s:
            return None
        because = f"no step has completed for {silent_s:.0f} s; the limit is {limit_s:.0f} s"
        return self.incident(now, because, silent_s=silent_s, limit_s=limit_s)

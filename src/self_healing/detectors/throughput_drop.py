"""The rule `throughput-drop`: steps take much longer than they did."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..actions.alert import Alert
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Baseline, Cusum, Statistic

_CALM = tuple(0.5 * math.exp(0.05 * math.sin(i * i)) for i in range(100))


@dataclass(frozen=True, kw_only=True)
class ThroughputDrop(Detector):
    """Steps have become much slower and stay slow.

    ## Why it matters
    A throttled or shared device, a data loader that no longer keeps up, or a node with a failing link costs money
    quietly for the rest of the run.

    ## What to try
    1. Look at the device's clocks and temperature (`nvidia-smi -q -d PERFORMANCE`), and for others on the
       machine.
    2. See whether steps wait for data: more `dataloader_num_workers`, data nearby.
    3. Batches that grew longer: group by length.

    ## False alarms
    Step times are compared in log space with a clipped CUSUM, so single slow steps (evaluation, saving, a recompile)
    do not count. A change that lasts, such as longer sequences from a curriculum, does: it is a warning, and becomes
    the new normal when the incident is closed.

    ## References
    Falcon (arXiv 2410.12588) for slow-downs found in the series of step times.
    """

    slower: float = 1.3
    """Times the usual step time from which it is worth a word."""
    limit: float = 17.5
    """Sum of excesses that raises the alarm."""

    failure = FailureType.OTHER
    fine = "throughput_drop"
    severity = Severity.WARNING
    metric = "step_time_s"
    remedy = (Rung((Alert(),), success=0.1),)
    examples = (
        fires("every step takes twice as long", at_step=105, step_time_s=_CALM + tuple(2 * x for x in _CALM[:20])),
        quiet("one slow step", step_time_s=(*_CALM, 30.0, *_CALM)),
    )

    @cached_property
    def _cusum(self) -> Cusum:
        return Cusum("step_time_s", limit=self.limit, log=True)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The usual step time, in log space, and the sum of excesses over it."""
        return (Baseline("step_time_s", log=True), self._cusum)

    def check(self, now: Signal, past: History) -> Incident | None:
        """Report a slow-down that has lasted."""
        if now.get("step_time_s") is None:
            return None
        cusum = past.stat(self._cusum)
        if not cusum.alarm or cusum.excess < math.log(self.slower):
            return None
        typical = cusum.baseline.typical
        return self.incident(
            now,
            f"steps have taken {math.exp(cusum.excess):.2f} times their usual {typical:.3g} s "
            f"for {cusum.onset} observations",
            excess=typical * math.expm1(cusum.excess),
            onset_step=past.step_ago("step_time_s", cusum.onset - 1),
            typical=typical,
        )

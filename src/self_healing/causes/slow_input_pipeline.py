"""The cause `slow-input-pipeline`."""

from __future__ import annotations

from statistics import median

from ..actions.alert import Alert
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import ENOUGH, finite_latest

WINDOW = 64
SLOWER = 1.2
HICCUP = 3.0
OFTEN = 3


class SlowInputPipeline(Cause):
    """The GPU waits for data.

    Workers that cannot keep up empty their queue first and then delay every so many steps: most steps are as fast
    as ever and some take several times as long. A network file system or a stream does the same in bursts.
    """

    explains = ("throughput-drop", "step-stalled")
    confirm = "Feed the same batch again and again for a minute: if steps become fast, the input was the limit."
    fixes = (
        "Raise the number of data workers and prefetch_factor, and pin memory.",
        "Tokenize once and store the result instead of tokenizing while training.",
        "Copy the data to a local disk.",
        "If several GPUs with FSDP hang rather than slow down, set async_prefetch: false.",
    )
    remedy = (rung(Alert(), success=0.2),)

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for a few slow steps among many fast ones."""
        times, newest = past.last("step_time_s", WINDOW), finite_latest(past, "step_time_s")
        if len(times) < ENOUGH:
            return Evidence(weight=0.25)
        usual = median(times)
        slow = sum(time > HICCUP * usual for time in times)
        if slow >= OFTEN:
            found = f"{slow} of the last {len(times)} steps took over {HICCUP:g} times the usual {usual:.3g} s"
            return Evidence(weight=0.5, found=(found, "the others were as fast as ever"))
        if incident.name == "throughput-drop" and newest is not None and newest < SLOWER * usual:
            return None
        return Evidence(weight=0.3)

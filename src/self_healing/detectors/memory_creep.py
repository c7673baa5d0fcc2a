"""The rule `memory-creep`: memory in use keeps growing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from ..actions.alert import Alert
from ..core.action import Rung
from ..core.detector import Detector, fires, quiet
from ..core.failure import FailureType, Severity
from ..core.history import History
from ..core.incident import Incident
from ..core.signal import Signal
from ..core.statistics import Statistic, Trend

GAUGES = ("memory_bytes", "memory_reserved_bytes", "host_memory_bytes")
"""Metrics that say how much memory is in use, in any unit."""


@dataclass(frozen=True, kw_only=True)
class MemoryCreep(Detector):
    """Memory in use has grown steadily over a long window.

    ## Why it matters
    A tensor kept with its graph, a list that collects losses, or a data-loader worker that copies pages ends the run
    hours later with an out-of-memory error whose place says nothing about the cause.

    ## What to try
    1. Look for tensors that are kept with their graph: `loss.item()` instead of `loss` in lists and logs.
    2. Empty what a callback collects; move kept outputs to the host (`eval_accumulation_steps`).
    3. Workers of a loader that grow: fewer `dataloader_num_workers`, data in Arrow or NumPy instead of lists.

    ## False alarms
    Memory grows at the start and with the longest batch so far. The rule asks for growth in three quarters of the
    blocks of a full window, on a clear line, by at least `growth` of the level.

    ## References
    PyTorch documentation, "My model reports out of memory": do not accumulate history across the training loop.
    """

    block: int = 16
    """Observations averaged into one point."""
    blocks: int = 16
    """Points in the window."""
    growth: float = 0.05
    """Growth over the window, as a share of the level."""
    certainty: float = 6.0
    """Slope divided by its standard error."""

    failure = FailureType.OOM
    fine = "memory_creep"
    severity = Severity.WARNING
    reads = GAUGES
    metric = None
    remedy = (Rung((Alert(),), success=0.1),)
    examples = (
        fires("a little more every step", at_step=256, memory_bytes=[10.0 + 0.01 * i for i in range(300)]),
        quiet("a jump at the start", memory_bytes=[4.0] * 10 + [10.0] * 490),
        quiet("up and down", memory_bytes=[10.0 + math.sin(i / 40) for i in range(500)]),
    )

    @cached_property
    def _trends(self) -> tuple[Trend, ...]:
        return tuple(Trend(gauge, block=self.block, blocks=self.blocks) for gauge in GAUGES)

    @property
    def looks_every(self) -> int:
        """Return the length of a block."""
        return self.block

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The slope of every gauge."""
        return self._trends

    def check(self, now: Signal, past: History) -> Incident | None:
        """Look at a gauge's line whenever one of its blocks has been completed."""
        for trend_of in self._trends:
            if now.get(trend_of.metric) is None:
                continue
            trend = past.stat(trend_of)
            if not trend.ready or trend.filled or trend.change < self.growth * abs(trend.level):
                continue
            growing = sum(after > before for before, after in pairwise(trend.means))
            if trend.slope < self.certainty * trend.error or growing < 0.75 * (len(trend.means) - 1):
                continue
            share = trend.change / trend.level if trend.level else 0.0
            found = self.incident(
                now,
                f"{trend_of.metric} has grown by {share:.0%} within {trend.span} observations and goes on growing",
                onset_step=past.step_ago(trend_of.metric, trend.span),
                growth=share,
            )
            return replace(found, paced_by=trend_of.metric)
        return None

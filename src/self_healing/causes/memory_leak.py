"""The cause `memory-leak`."""

from __future__ import annotations

from itertools import pairwise

from ..actions.clear_cache import ClearCache
from ..actions.restart_process import RestartProcess
from ..actions.save_checkpoint import SaveCheckpoint
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Cause, Evidence
from ..core.history import History
from ..core.incident import Incident
from ._numbers import finite_latest

WINDOW = 64
FEW = 12
STEADY = 0.8
GROWN = 1.05
FLAT = 1.01


class MemoryLeak(Cause):
    """Something keeps tensors alive from step to step.

    Usual suspects are a loss summed up without .item(), a list of outputs kept for metrics, or a hook that holds its
    arguments. Memory climbs by about the same amount every step until an allocation fails.
    """

    explains = ("memory-creep", "throughput-drop")
    confirm = (
        "Record memory with torch.cuda.memory._record_memory_history() over some steps: blocks allocated by the same "
        "line and never freed settle it."
    )
    fixes = (
        "Detach what is kept: use loss.item() or loss.detach() when summing up.",
        "Empty lists of outputs after every evaluation.",
    )
    remedy = (
        rung(ClearCache(), success=0.3),
        rung(SaveCheckpoint(), RestartProcess(), success=0.7),
        rung(StopRun()),
    )

    def evidence(self, incident: Incident, past: History) -> Evidence | None:
        """Look for memory that rises steadily."""
        used = past.last("memory_bytes", WINDOW)
        newest = finite_latest(past, "memory_bytes")
        if newest is not None:
            used.append(newest)
        if len(used) < FEW:
            return Evidence(weight=0.3) if incident.name == "memory-creep" else None
        grown = used[-1] / used[0] if used[0] > 0 else 1.0
        if grown < FLAT:
            return None
        steady = sum(later >= earlier for earlier, later in pairwise(used)) / (len(used) - 1)
        if grown < GROWN or steady < STEADY:
            return Evidence(weight=0.3)
        return Evidence(
            weight=0.65,
            found=(f"memory rose {grown:.2f} times over {len(used)} observations, in {steady:.0%} of the steps",),
        )

"""The fault `checkpoint-truncated`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..disk_faults import cut_short
from ..fault import Expected, Fault


@dataclass(kw_only=True)
class CheckpointTruncated(Fault):
    """Half of the newest checkpoint is missing when the run is to go on from there, as after a power cut."""

    at_step: int = 45

    is_transient = True
    is_for_trainers = False
    stage = "resumed"
    expected = Expected(cause=("checkpoint-passed-over",), actions=("resume_from_older",), excess=0.0)

    def harm(self, folder: Path) -> None:
        """Cut its largest file in half."""
        newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        cut_short(max(newest.iterdir(), key=lambda path: path.stat().st_size))

"""The fault `checkpoint-corrupt`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..disk_faults import flip_bit
from ..fault import Expected, Fault


@dataclass(kw_only=True)
class CheckpointCorrupt(Fault):
    """One bit of the newest checkpoint has flipped on the disk when the run is to go on from there."""

    at_step: int = 45

    is_transient = True
    is_for_trainers = False
    stage = "resumed"
    expected = Expected(cause=("checkpoint-passed-over",), actions=("resume_from_older",), excess=0.0)

    def harm(self, folder: Path) -> None:
        """Flip it in the largest file."""
        newest = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        flip_bit(max(newest.iterdir(), key=lambda path: path.stat().st_size))

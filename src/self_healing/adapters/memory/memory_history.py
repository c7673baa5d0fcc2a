"""Who held the memory: allocation history of CUDA from the first shortage on, written down at the second.

Recording costs a few percent of a step and some host memory, so it is off until it is needed. Without CUDA nothing is
done, and nothing here can break a run: what cannot be recorded is said in the log.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

logger = logging.getLogger("self_healing.memory")

MOST_ENTRIES = 100_000
"""Allocations and frees kept: the last few steps of a large model."""
MOST_SNAPSHOTS = 3
"""Files written per run; each can be hundreds of megabytes."""


class MemoryHistory:
    """The allocation history of one run."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.is_recording = False
        self._written = 0

    def start(self) -> None:
        """Begin to record, where CUDA is in use."""
        import torch

        if self.is_recording or not torch.cuda.is_initialized():
            return
        try:
            torch.cuda.memory._record_memory_history(max_entries=MOST_ENTRIES, stacks="python")  # noqa: SLF001
        except (RuntimeError, AttributeError, TypeError) as error:
            logger.warning("the history of allocations cannot be recorded: %s", error)
            return
        self.is_recording = True

    def out_of_memory(self, step: int) -> str | None:
        """Record from the first shortage on; write `oom_<step>.pickle` at a later one and return two lines about it.

        Called while the failed attempt still holds its memory.
        """
        import torch

        if not self.is_recording:
            self.start()
            return None
        if self._written >= MOST_SNAPSHOTS:
            return None
        path = self.folder / f"oom_{step}.pickle"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
            torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001
        except (RuntimeError, OSError, MemoryError, AttributeError) as error:
            logger.warning("the history of allocations cannot be written: %s", error)
            return None
        self._written += 1
        return f"{summary(snapshot)}\npython -m torch.cuda._memory_viz trace_plot {path} -o {path.with_suffix('.html')}"

    def stop(self) -> None:
        """Stop recording."""
        import torch

        if self.is_recording:
            torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
            self.is_recording = False


def summary(snapshot: dict[str, Any]) -> str:
    """Say in one line who holds the memory of a snapshot, by the line of code that asked for it."""
    held: Counter[str] = Counter()
    for segment in snapshot.get("segments", ()):
        for block in segment.get("blocks", ()):
            if str(block.get("state", "")).startswith("active"):
                held[_asked_by(block.get("frames", ()))] += int(block.get("size", 0))
    total = sum(held.values())
    if not total:
        return "no memory was held"
    told = ", ".join(f"{place} {size / 2**20:.0f} MiB" for place, size in held.most_common(3))
    return f"{total / 2**20:.0f} MiB were held, most of it by {told}"


def _asked_by(frames: Any) -> str:
    """Name the innermost line outside of PyTorch; memory from before the recording has none."""
    for frame in frames:
        name = str(frame.get("filename", ""))
        if name.endswith(".py") and "/torch/" not in name:
            return f"{'/'.join(name.rsplit('/', 2)[-2:])}:{frame.get('line', 0)}"
    return "what was there before recording began" if not frames else "PyTorch itself"

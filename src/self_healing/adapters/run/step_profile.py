"""PyTorch profiler traces of chosen steps, as files that chrome://tracing and Perfetto open."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

logger = logging.getLogger("self_healing.profile")


class StepProfile:
    """Profiles the steps it is asked for, each into a file of its own; other steps cost nothing."""

    def __init__(self, steps: Iterable[int], folder: Path) -> None:
        self.steps = frozenset(steps)
        self.folder = folder
        self._running: Any = None

    def step_begins(self, step: int) -> None:
        """Begin to record, if this step, counted from 1, was asked for."""
        self.end()  # a step that was left half-way by a restart
        if step not in self.steps:
            return
        import torch

        if torch.autograd.profiler._is_profiler_enabled:  # noqa: SLF001  # there is no public way to ask
            logger.warning(
                "step %d is not profiled: a profiler of your own is running, and there can be only one", step
            )
            return
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._running = torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True)
        self._running.__enter__()

    def step_ends(self, step: int) -> None:
        """Write what was recorded; a disk that is full costs the trace, not the run."""
        if self._running is None:
            return
        running, self._running = self._running, None
        running.__exit__(None, None, None)
        path = self.folder / f"trace_{step}.json"
        try:
            running.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            logger.warning("the trace of step %d could not be written to %s: %s", step, path, error)
            return
        logger.info("the trace of step %d is %s", step, path)

    def end(self) -> None:
        """Stop recording where a step was left half-way."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

"""What trackers are told of a run's health beside what its trainer logs: numbers that the host has anyway.

They are never put into the trainer's own log of a healthy run, and no device is asked for them: gradients are those of
the newest step that was read, and what an allocator has held is counted on the host.
"""

from __future__ import annotations

import math
import resource
import sys
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .log_figures import GOODPUT

if TYPE_CHECKING:
    from ..step.make_up import AppliedStep
    from ..step.step_reading import StepReading
    from .session import Session

WINDOW = 50
"""Losses whose mean the newest one is compared with, as the rule `loss-spike` does for its `factor`."""
GIB = 2**30


class RunFigures:
    """The figures of one training, brought up to date by what is read of its steps."""

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.nan_count = 0
        """Steps whose loss or gradients were not finite."""
        self.total_clips = 0
        """Gradients that were brought down further than the user's own limit would have."""
        self._losses: deque[tuple[int, float]] = deque(maxlen=WINDOW + 1)
        self._clipping: dict[str, float] = {}
        self._eval_gap: float | None = None

    def read(self, reading: StepReading, *, norm_is_known: bool) -> None:
        """Take in what the device said of a step; the search of a GradScaler for its scale is no trouble."""
        if not reading.is_sound:
            self.nan_count += not reading.is_routine_overflow
            return
        if reading.is_applied and reading.has_loss:
            self._trained(reading.step, reading.loss)
        if norm_is_known:
            self._clipping = {
                "zclip/raw_grad_norm": reading.norm,
                "zclip/clipped_grad_norm": reading.norm * reading.coefficient,
                "zclip/z_score": reading.z,
            }

    def made_up(self, applied: AppliedStep) -> None:
        """Take in a step that was run again."""
        self._trained(applied.step, applied.loss)

    def returned(self, to_step: int) -> None:
        """Forget the losses of steps that are undone."""
        kept = [(step, loss) for step, loss in self._losses if step <= to_step]
        self._losses = deque(kept, maxlen=WINDOW + 1)

    def close(self) -> None:
        """Hold on to the session no longer."""
        self._session = None

    def all(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return every figure there is a value for, at the moment something is logged."""
        session = self._session
        if session is None:
            return {}
        self._evaluated(logs)
        making_up, returns = session.guard.making_up, session.rollback.returns()
        figures = {
            "healing/recovery_attempts": session.desk.healer.memory.total,
            "healing/nan_count": self.nan_count,
            "healing/loss_spike_ratio": self._spike_ratio(),
            "healing/eval_gap": self._eval_gap,
            "healing/skipped_steps": making_up.skipped_steps,
            "healing/lr_scale": session.guard.rate_scale.value,
            "healing/oom_splits": session.memory.micro_batches.splits,
            GOODPUT: round(session.spent.goodput(), 6),
            "healing/steps_lost": returns.steps_lost,
            "healing/seconds_lost": round(returns.seconds_lost, 3),
            # One axis that never goes back, and the number of the attempt at a stretch of it.
            "healing/trained_steps": int(session.trainer.state.global_step) + returns.steps_lost,
            "healing/rollbacks": returns.times,
            **_memory(),
            **self._clipping,
            "zclip/total_clips": self.total_clips,
        }
        return {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}

    def _trained(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            self._losses.append((step, loss))

    def _evaluated(self, logs: Mapping[str, Any]) -> None:
        """Compare the loss of an evaluation with that of the newest step, once for each."""
        value = logs.get("eval_loss")
        if isinstance(value, int | float) and self._losses and math.isfinite(value):
            self._eval_gap = float(value) - self._losses[-1][1]

    def _spike_ratio(self) -> float | None:
        """Return the newest loss as a multiple of the mean of those before it; a mean of zero or less says nothing."""
        losses = [loss for _, loss in self._losses]
        if not losses:
            return None
        before = losses[:-1] or losses
        mean = sum(before) / len(before)
        return losses[-1] / mean if mean > 0.0 else None


def _memory() -> dict[str, float]:
    """Return the most memory that was in use, in GiB: of torch's allocator on CUDA, else of the process."""
    import torch

    if torch.cuda.is_initialized():
        most, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        most = reserved = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"memory/max_alloc": round(most / GIB, 4), "memory/max_reserved": round(reserved / GIB, 4)}

"""Everything that is done about memory during one training: in the step, in what surrounds it, and in the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.failure import FailureType
from ..run.reflexes import Reflex
from ..wrapping import Wrapping
from .evaluation_retry import EvaluationRetry
from .generation_retry import GenerationRetry
from .memory_events import MemoryEvent
from .memory_history import MemoryHistory
from .micro_batch_retry import MicroBatchRetry
from .saving_retry import SavingRetry

if TYPE_CHECKING:
    from ...config import HealingConfig


class MemoryCare:
    """Lets a trainer get through shortages of memory, and reports each as one reflex."""

    def __init__(
        self,
        trainer: Any,
        folder: Path,
        *,
        on_reflex: Callable[[Reflex], None],
        note: Callable[[str, str], None],
        whole_because: str | None = None,
    ) -> None:
        self.micro_batches = MicroBatchRetry(trainer, whole_because=whole_because, on_event=self._take)
        self.shortages = 0
        kinds = (EvaluationRetry, SavingRetry, GenerationRetry)
        self._outside = tuple(kind(trainer, on_event=self._take) for kind in kinds)
        self._history = MemoryHistory(folder)
        self._on_reflex = on_reflex
        self._note = note
        self._began: tuple[float, str] | None = None
        """When the trouble at hand began, and what was seen."""

    def attach(self, wrapping: Wrapping) -> None:
        """Look after evaluations, saves and generation too."""
        for care in self._outside:
            care.attach(wrapping)

    def end(self) -> None:
        """Stop recording allocations, and listening."""
        self._history.stop()
        self.micro_batches.end()
        for care in self._outside:
            care.on_event = lambda _event: None

    def figures(self) -> dict[str, float]:
        """Return what it has cost; nothing in a run that never was out of memory."""
        if not self.shortages:
            return {}
        extra = self.micro_batches.extra_forwards
        return {"healing/out_of_memory": self.shortages, "healing/extra_forwards": extra}

    def _take(self, event: MemoryEvent) -> None:
        match event.kind:
            case "out-of-memory":
                self.shortages += 1
                if self._began is not None:  # the same trouble: it is being dealt with, and looked at already
                    return
                self._began = (time.perf_counter(), event.text)
                told = self._history.out_of_memory(event.step)
                if told is not None:
                    self._note("memory-history", told)
            case "recovered":
                began, because = self._began or (time.perf_counter(), event.text)
                self._began = None
                details: dict[str, object] = {
                    "micro_batch": event.micro_batch, "phase": event.phase, "extra_forwards": event.extra_forwards,
                }  # fmt: skip
                self._on_reflex(
                    Reflex(
                        failure=FailureType.OOM,
                        incident="out-of-memory",
                        because=because,
                        actions=_actions(event),
                        said=event.text,
                        step=event.step,
                        seconds=time.perf_counter() - began,
                        details=details,
                    )
                )
            case _:
                self._began = None
                self._note(f"memory-{event.kind}", event.text)


def why_whole(config: HealingConfig) -> str | None:
    """Say why no batch may go through in pieces where memory runs out, if the user says so."""
    if config.oom_action != "split":
        return f"oom_action is {config.oom_action}"
    if config.max_effect != "nothing":
        return None
    return "max_effect is nothing, and the gradient of pieces is equal to that of the whole but for rounding"


def _actions(event: MemoryEvent) -> tuple[str, ...]:
    """Return the names of the catalogue for what got a micro-batch through."""
    done = ["clear-cache"]
    if "checkpointing" in event.tactic:
        done.append("enable-gradient-checkpointing")
    if "pieces" in event.tactic:
        done.append("split-micro-batch")
    return tuple(done)

"""What a run may be able to do: one protocol per ability, offered by having the method.

An adapter's run object offers exactly the capabilities whose methods it has. An action names the one it
needs; where a run lacks it, the policy passes over that rung and the plan says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from .naming import kebab_case


@runtime_checkable
class CanSkipStep(Protocol):
    """The current update can be dropped so that weights and optimizer state stay untouched."""

    def skip_step(self) -> str: ...


@runtime_checkable
class CanRollBack(Protocol):
    """Model, optimizer, schedule, RNG and data position can return to an earlier known state."""

    def roll_back(
        self, *, before_step: int | None, depth: int, min_steps: int | None
    ) -> RollbackDone | ReturnAsked: ...


@runtime_checkable
class CanSkipBatches(Protocol):
    """The data position can be moved past batches that did harm; a run may have to return to before them for it."""

    def skip_batches(self, *, margin: int) -> str | ReturnedToSkip | ReturnAsked: ...


@runtime_checkable
class CanScaleLearningRate(Protocol):
    """The learning rate can be multiplied while the schedule keeps its shape."""

    def scale_learning_rate(self, factor: float, *, floor: float | None) -> float: ...


@runtime_checkable
class CanRewarmLearningRate(Protocol):
    """The learning rate can be cut and ramped back over a number of steps; a factor of 1 ends the ramp."""

    def rewarm_learning_rate(self, factor: float, *, ramp_steps: int, floor: float | None) -> float: ...


@runtime_checkable
class CanTightenClipping(Protocol):
    """The gradient-norm limit can be lowered, or set where there was none; a factor above 1 takes that back."""

    def tighten_clipping(self, *, factor: float, initial: float) -> float: ...


@runtime_checkable
class CanRaiseKlPenalty(Protocol):
    """The weight of the divergence from the reference can be raised; a factor below 1 takes the last raise back."""

    def raise_kl_penalty(self, factor: float, *, least: float, most: float) -> float: ...


@runtime_checkable
class CanResetMoments(Protocol):
    """The optimizer's moments can be cleared."""

    def reset_moments(self) -> str: ...


@runtime_checkable
class CanAverageNeighbours(Protocol):
    """Weights that are not finite can be had from the layers beside them, where no state can be returned to."""

    def average_neighbours(self) -> str: ...


@runtime_checkable
class CanSplitMicroBatch(Protocol):
    """The failed micro-batch can be run again in smaller pieces with the same effective batch."""

    def split_micro_batch(self, *, parts: int) -> str: ...


@runtime_checkable
class CanHalveBatchSize(Protocol):
    """The per-device batch can be halved while accumulation keeps the effective batch."""

    def halve_batch_size(self, *, floor: int) -> str: ...


@runtime_checkable
class CanEnableGradientCheckpointing(Protocol):
    """Activations can be recomputed instead of stored."""

    def enable_gradient_checkpointing(self) -> str: ...


@runtime_checkable
class CanClearCache(Protocol):
    """Cached device memory can be released."""

    def clear_cache(self) -> str: ...


@runtime_checkable
class CanSaveCheckpoint(Protocol):
    """A checkpoint of a state known to be good can be written now."""

    def save_checkpoint(self) -> str: ...


@runtime_checkable
class CanRetry(Protocol):
    """The failed operation can be repeated after a pause; the pause happens in the adapter."""

    def retry_later(self, *, wait_s: float) -> str: ...


@runtime_checkable
class CanRestart(Protocol):
    """The process can be ended cleanly and started again from the last good state."""

    def restart_process(self) -> str: ...


@runtime_checkable
class CanExcludeNode(Protocol):
    """The job can go on without a machine that keeps failing."""

    def exclude_node(self) -> str: ...


@runtime_checkable
class CanQuarantine(Protocol):
    """Records that did harm can be named and left out from now on."""

    def quarantine_records(self) -> str: ...


@runtime_checkable
class CanAlert(Protocol):
    """A person can be told."""

    def alert(self, text: str) -> str: ...


@runtime_checkable
class CanStop(Protocol):
    """Training can be ended in good order, with a postmortem."""

    def stop_run(self, reason: str) -> str | StoppedAt: ...


@dataclass(frozen=True, slots=True)
class StoppedAt:
    """What is reported where a run ends with the state of another step than the one it was at."""

    step: int
    text: str
    """What was done, in a sentence."""


class RollbackDone(Protocol):
    """What a rollback reports: the snapshot it restored and the step the run is at now."""

    @property
    def key(self) -> str: ...

    @property
    def step(self) -> int: ...


class ReturnedToSkip(RollbackDone, Protocol):
    """What skipping reports where the run has returned to an earlier state for it."""

    @property
    def text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ReturnAsked:
    """What is reported where the run returns only later: it says so by the signal `Returned` once it is there."""

    key: str
    step: int
    text: str = ""
    """What else was done, in a sentence."""


CAPABILITIES: dict[str, type] = {
    kebab_case(cls.__name__): cls
    for cls in (
        CanSkipStep, CanRollBack, CanSkipBatches, CanScaleLearningRate, CanRewarmLearningRate, CanTightenClipping,
        CanRaiseKlPenalty, CanResetMoments, CanAverageNeighbours, CanSplitMicroBatch, CanHalveBatchSize, CanEnableGradientCheckpointing,
        CanClearCache, CanSaveCheckpoint, CanRetry, CanRestart, CanExcludeNode, CanQuarantine, CanAlert, CanStop,
    )
}  # fmt: skip
"""Every capability by its name in ledgers, such as `can-roll-back`."""


def capabilities_of(run: object) -> frozenset[str]:
    """Return the names of the capabilities a run offers, by the methods it has."""
    return frozenset(name for name, cls in CAPABILITIES.items() if isinstance(run, cls))

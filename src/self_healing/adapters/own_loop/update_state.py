"""The state of a run with a loop of its own before an update, in host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...snapshots.budget import free_memory, slots_within
from ..family import weights_were_changed
from ..memory.checkpointing import is_checkpointing, switch_checkpointing_on
from ..rollback.memory_snapshots import MemorySnapshots, SnapshotDamagedError

if TYPE_CHECKING:
    from ..rollback.trainer_capture import TrainerCapture


class UpdateState:
    """One state: weights, moments, schedule, random generators, the trainer's counts, and the accelerator's place."""

    def __init__(self, trainer: Any, *, memory_fraction: float) -> None:
        self.trainer = trainer
        self.step = 0
        """The last update that it holds."""
        self._fraction = memory_fraction
        self._memory = MemorySnapshots(trainer, slots=1)
        self._capture: TrainerCapture | None = None
        self._micro_batches = 0
        self._saves_activations = False

    @property
    def is_kept(self) -> bool:
        """Whether there is a state to return to."""
        return self._capture is not None

    @property
    def key(self) -> str:
        """What the state is called in the ledger."""
        return f"before-update-{self.step + 1}"

    def why_no_room(self) -> str | None:
        """Say why host memory does not suffice, if so; it takes the moments too, which come with the first update."""
        nbytes, free = self._memory.expected_nbytes(), free_memory()
        if slots_within(nbytes, free=free, fraction=self._fraction, most=1):
            return None
        return f"a state takes {nbytes:,} bytes of host memory, of which {free:,} are free"

    def take(self) -> None:
        """Set the state of this moment aside, in the place of the one before."""
        self._capture = None  # its memory is written to from now on
        trainer = self.trainer
        self._capture = self._memory.present()
        self.step = int(trainer.state.global_step)
        self._micro_batches = int(trainer.accelerator.step)
        self._saves_activations = is_checkpointing(trainer.model)

    def put_back(self) -> None:
        """Return to it; it stays, and can be returned to again.

        Raises:
            SnapshotDamagedError: the memory no longer holds what was set aside; nothing was touched.

        """
        assert self._capture is not None, "a state is returned to only where one is kept"
        if not self._capture.copies.verify():
            raise SnapshotDamagedError(f"{self.key} was changed in memory since it was taken; nothing was put back")
        trainer = self.trainer
        self._leave_the_rollout()
        self._capture.restore()
        trainer.accelerator.step = self._micro_batches
        # The loop counts the episodes of an update just before it fetches, where the state was taken.
        trainer.state.episode -= int(trainer.args.batch_size)
        weights_were_changed(trainer)

    def _leave_the_rollout(self) -> None:
        """Do what the loop does at the end of a generation and of the reference's turn, where it has come to neither."""
        trainer = self.trainer
        if self._saves_activations and not is_checkpointing(trainer.model):
            switch_checkpointing_on(trainer.model, None)
        if getattr(trainer, "ref_adapter_name", None):
            trainer.model.policy.set_adapter(trainer.model_adapter_name or "default")

    def forget(self) -> None:
        """Give the memory back."""
        self._capture = None
        self._memory.clear()

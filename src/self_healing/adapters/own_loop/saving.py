"""Checkpoints of a loop of its own that nobody but us has asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wrapping import Wrapping

if TYPE_CHECKING:
    from .update_guard import UpdateGuard
    from .update_state import UpdateState


UNSET = {"is_distributed_loading_by_transformers": False}
"""What newer versions of transformers set when a Trainer is made, and read when it is saved.

A trainer with a loop of its own may not call the constructor, so that each of its saves would fail.
"""


class Saving:
    """Writes what the trainer itself would write, of whole updates only."""

    def __init__(self, trainer: Any, guard: UpdateGuard, state: UpdateState) -> None:
        self.trainer = trainer
        self._guard = guard
        self._state = state
        self._saved: set[int] = set()

    def attach(self, wrapping: Wrapping) -> None:
        """Have the trainer able to save, for as long as it is guarded."""
        for name, value in UNSET.items():
            if not hasattr(self.trainer, name):
                wrapping.replace(self.trainer, name, value)

    def saved(self) -> None:
        """Take note of a checkpoint of the trainer's."""
        self._saved.add(int(self.trainer.state.global_step))

    def save_last_update(self) -> str:
        """Save the state before an update that has failed; say in a sentence what came of it."""
        if not self._state.is_kept:
            return "no state is kept that could be saved"
        self._state.put_back()
        return self.save_now()

    def save_at_stop(self) -> str:
        """Save what a run ends with that is stopped after an update: that update, or the one before where it was harmed."""
        return self.save_last_update() if self._guard.broken_weights() and self._state.is_kept else self.save_now()

    def save_now(self) -> str:
        """Save the state of this moment, which is that after an update; say in a sentence what came of it."""
        trainer = self.trainer
        step = int(trainer.state.global_step)
        if step == 0:
            return "no update is complete yet, nothing to save"
        if step in self._saved:
            return f"checkpoint-{step} was there already"
        if self._guard.broken_weights():
            return "the weights are not finite, no checkpoint was written"
        model = trainer.model
        try:
            trainer._save_checkpoint(trainer.model, trial=None)  # noqa: SLF001  # what the loop itself calls
        except Exception as error:  # noqa: BLE001  # the fence: said in the ledger; what started this matters more
            trainer.model = model  # it saves a part of it, which it leaves in its place where that fails
            return f"the emergency checkpoint failed: {type(error).__name__}: {error}"
        trainer.control.should_save = False
        self.saved()
        return f"checkpoint-{step} was written; a {type(trainer).__name__} cannot resume from it"

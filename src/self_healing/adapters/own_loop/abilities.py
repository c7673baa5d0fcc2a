"""What can be done to a trainer with a loop of its own: begin its update anew, with less at once where memory ran out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ...core.capability import ReturnAsked
from ...core.errors import ActionFailed
from ..run.abilities import LoopAbilities
from ..run.moves import ReturnTo

if TYPE_CHECKING:
    from .batches import Batches
    from .update_guard import UpdateGuard
    from .update_state import UpdateState


class OwnLoopAbilities(LoopAbilities):
    """Everything begins with a return to the beginning of the update at hand."""

    def __init__(self, trainer: Any, guard: UpdateGuard, state: UpdateState, batches: Batches | None) -> None:
        super().__init__(trainer, guard.rate_scale)
        self.guard = guard
        self.state = state
        self.batches = batches
        self.left_by: BaseException | None = None
        """The exception that has left the loop, while it is being answered."""
        self._accumulation = int(trainer.accelerator.gradient_accumulation_steps)

    def put_back(self) -> None:
        """Put the user's settings back, the accelerator's too."""
        super().put_back()
        trainer: Any = self.loop
        trainer.accelerator.gradient_accumulation_steps = self._accumulation

    def roll_back(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Ask for a return to the beginning of the update at hand, the only state there is."""
        state = self.state
        # What was not finite in earlier updates was never applied: the state before this one is as good as any.
        is_clean = before_step is None or state.step < before_step or self.guard.skipped_now > 0
        if not state.is_kept or not is_clean or depth or (min_steps or 0) > 1:
            raise ActionFailed(f"a {type(self.loop).__name__} returns to the beginning of its update, and no further")
        self.pending.ask(ReturnTo(state.key, onset=before_step))
        return ReturnAsked(state.key, state.step)

    def skip_batches(self, *, margin: int) -> str:
        """Let other data take the place of those of the update that is returned to."""
        if not isinstance(self.pending.asked, ReturnTo) or self.batches is None:
            raise ActionFailed("data are left out only together with a return to the beginning of their update")
        self.batches.leave_out()
        return f"the batch of update {self.state.step + 1} is left out"

    def retry_later(self, *, wait_s: float) -> str:
        """Begin the update anew after a pause."""
        self.roll_back(before_step=None, depth=0, min_steps=None)
        time.sleep(wait_s)
        return f"update {self.state.step + 1} begins anew after {wait_s:.1f} s"

    def tighten_clipping(self, *, factor: float, initial: float) -> float:
        """Clip gradients, which the loop itself never does; a factor above 1 takes the last limit back."""
        guard = self.guard
        if factor > 1.0:
            guard.limit = self._limits.pop() if self._limits else None
        else:
            self._limits.append(guard.limit)
            guard.limit = initial if guard.limit is None else guard.limit * factor
        return float(guard.limit or 0.0)

    def clear_cache(self) -> str:
        """Release cached device memory; after an exception that has been done already, in vain."""
        if self.left_by is not None:
            raise ActionFailed("memory was freed and the update begun anew already, and it did not help")
        return super().clear_cache()

    def halve_batch_size(self, *, floor: int) -> str:
        """Begin the update anew with half as much at once: of the rollout, or of a mini-batch, whichever has failed."""
        said = self._halve_rollout(floor) if self.guard.phase == "rollout" else self._halve_micro_batch(floor)
        self.roll_back(before_step=None, depth=0, min_steps=None)
        return said

    def _halve_rollout(self, floor: int) -> str:
        args, name = self.loop.args, "local_rollout_forward_batch_size"
        size = min(int(getattr(args, name, 0)), int(args.local_batch_size))
        if size // 2 < max(1, floor):
            raise ActionFailed(f"rollouts of {size} at once cannot be halved, with {floor} as the smallest allowed")
        self._changes.replace(args, name, size // 2)
        return f"{name} {size} -> {size // 2}; what is generated is drawn anew, from the same policy"

    def _halve_micro_batch(self, floor: int) -> str:
        trainer: Any = self.loop
        args = trainer.args
        size = min(int(args.per_device_train_batch_size), int(args.local_mini_batch_size))
        if size // 2 < max(1, floor) or size % 2:
            raise ActionFailed(f"a micro-batch of {size} cannot be halved, with {floor} as the smallest allowed")
        if not hasattr(trainer.accelerator, "_do_sync"):
            raise ActionFailed(
                "this version of accelerate says nowhere when gradients are added up: more steps could be made"
            )
        pieces = 2 * int(args.gradient_accumulation_steps)
        self._changes.replace(args, "per_device_train_batch_size", size // 2)
        self._changes.replace(args, "gradient_accumulation_steps", pieces)
        trainer.accelerator.gradient_accumulation_steps = pieces
        self.guard.pieces *= 2
        return (
            f"per_device_train_batch_size {size} -> {size // 2}, accumulation {pieces}; mini-batches stay as they are"
        )

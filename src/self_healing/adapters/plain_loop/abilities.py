"""What can be done to a loop of somebody's own: all that needs no other loader, arguments or entry than the loop's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.capability import ReturnAsked, StoppedAt
from ...core.errors import ActionFailed
from ..rollback.abilities import RollbackAbilities
from ..run.abilities import TrainerAbilities


class _WrittenLoop(TrainerAbilities):
    """What a loop cannot be made to do, and why; and what it can do besides."""

    hand_out_again: Callable[[], str] | None = None
    """Has the loop given the batch of the step that has failed once more; None where it takes its batches elsewhere."""
    wait: Callable[[float], None] | None = None
    """Waits, but only until a signal comes."""

    def put_back(self) -> None:
        """Hold on to nobody."""
        super().put_back()
        self.hand_out_again = self.wait = None

    def halve_batch_size(self, *, floor: int) -> str:
        """Say what the user can do: the loader is his."""
        size = int(self.loop.args.per_device_train_batch_size)
        smaller = f"a batch of {size // 2} with accumulate={2 * self.loop.args.gradient_accumulation_steps}"
        advice = f"{smaller} has the same gradients" if size > 1 else "use a smaller batch or a smaller model"
        raise ActionFailed(f"the batches come from a loader of your own, which cannot be halved from here: {advice}")

    def raise_kl_penalty(self, factor: float, *, least: float, most: float) -> float:
        """Say that the loss is the user's."""
        raise ActionFailed("the loss is a function of your own: a penalty in it cannot be found from here")

    def retry_later(self, *, wait_s: float) -> str:
        """Have the step that has failed done again after a pause: nothing of it was applied."""
        if self.left_by is None or self.hand_out_again is None or self.wait is None:
            raise ActionFailed("nothing has failed that could be done again")
        self.wait(wait_s)
        return f"{self.hand_out_again()} after {wait_s:.1f} s"

    def _return_to_checkpoint(self, *, before_step: int | None, depth: int, min_steps: int | None) -> ReturnAsked:
        """Say that there is nothing to return to."""
        raise ActionFailed(
            "no state in memory will do, and a loop cannot be taken back to a checkpoint while it runs: "
            "run the script again with guard(resume='auto')"
        )


class PlainAbilities(_WrittenLoop):
    """Of a loop whose states are not kept."""

    def save_checkpoint(self) -> str:
        """Have a checkpoint of this step written."""
        return self._save_now()


class PlainRollbackAbilities(_WrittenLoop, RollbackAbilities):
    """Of a loop whose states are kept: it returns to those in memory."""


class TogetherAbilities(PlainRollbackAbilities):
    """Of one of several processes: what depends on what this one alone has seen is left out."""

    def save_checkpoint(self) -> str:
        """Have all processes write the state of this step: they are all here."""
        return self._save_now()

    def stop_run(self, reason: str) -> str | StoppedAt:
        """End training at this step, with the weights of this step: which state is the furthest is known to each alone."""
        return TrainerAbilities.stop_run(self, reason)


KINDS: tuple[type[Any], type[Any]] = (PlainAbilities, PlainRollbackAbilities)
KINDS_TOGETHER: tuple[type[Any], type[Any]] = (PlainAbilities, TogetherAbilities)

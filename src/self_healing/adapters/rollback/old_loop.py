"""What has to be seen from outside of a loop that does not run its epochs in a method of its own: before transformers 5.3."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wrapping import Wrapping

if TYPE_CHECKING:
    from .data_windows import EpochData
    from .in_loop import RollbackLoop


class OldLoop:
    """Follows the epochs of such a loop, and mends how it ends one that was entered in the middle."""

    def __init__(self, loop: RollbackLoop) -> None:
        self.loop = loop
        self._is_first = True
        self._changed = Wrapping()

    def training_begins(self) -> None:
        """`train()` was entered: the next epoch is its first."""
        self._is_first = True

    def epoch_begins(self) -> None:
        """Begin an epoch, right before its loader is iterated over."""
        loop, is_first = self.loop, self._is_first
        returns_to, self._is_first = loop.restart.entered_for, False
        if returns_to is not None:
            number, before = returns_to.place.epoch.number, returns_to.place.steps
        elif is_first:
            number, before = divmod(int(loop.trainer.state.global_step), loop.restart.steps_per_epoch or 1)
        else:
            number, before = loop.data.epochs[-1].number + 1, 0
        before = 0 if loop.trainer.args.ignore_data_skip else before
        loop.enter({"epoch": number}, before, is_first=is_first)

    def fetched(self, epoch: EpochData, batches: list[Any]) -> None:
        """Have the last step of an epoch taken also where it has fewer batches than the others.

        This loop counts batches from where it has entered an epoch, and knows the last one by the length of all of it:
        in an epoch that was entered in the middle, gradients of a short last step would be left for the next epoch.
        """
        self.settle()
        trainer, making_up = self.loop.trainer, self.loop.guard.making_up if self.loop.guard is not None else None
        wanted = int(trainer.args.gradient_accumulation_steps)
        borrowed = 0 if making_up is None else making_up.borrowed  # which the guard adds to these
        count = len(batches) + min(wanted - len(batches), borrowed)
        if not epoch.steps_before or not batches or count == wanted:
            return
        before = (int(trainer.state.global_step) - epoch.first_step) * wanted
        self._changed.replace(trainer.args, "gradient_accumulation_steps", before + count)
        if before:  # the loop finds the beginning of the step by the same number
            trainer.control = trainer.callback_handler.on_step_begin(trainer.args, trainer.state, trainer.control)

    def settle(self) -> None:
        """Put the arguments back: before anybody saves them."""
        self._changed.restore()

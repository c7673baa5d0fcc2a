"""The sum of losses that a trainer logs its mean from, within reach in every version of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..wrapping import Wrapping


def _nothing_to_do() -> None:
    """Stand for a session that is over."""


class LossSum:
    """Reads the sum before a step, and corrects it when the step is made up.

    From transformers 5.3 on it is `trainer._tr_loss`. Before, it is a local tensor of the loop: each addition makes a
    new one, and after the step that one is handed to `_maybe_log_save_evaluate`. What is written into it there is the
    loop's own sum from then on, rounded as if it had been added up there.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._handed: Any = None
        """What the loop handed over last: its sum before the step that is running."""
        self._correct: Any = None
        """What the sum ought to be, until the loop hands it over."""
        self._carried: Any = None
        """What a loop that was entered anew has not added, until the first loss is."""

        self.after_log: Callable[[], None] = _nothing_to_do
        """Is called when the loop has logged, evaluated and saved what was due at the end of a step or of an epoch."""

    def attach(self, wrapping: Wrapping) -> None:
        """Look at the sum whenever the loop hands it over."""
        if hasattr(self.trainer, "_maybe_log_save_evaluate"):
            wrapping.wrap(self.trainer, "_maybe_log_save_evaluate", self._around_handing_over)

    def begin(self) -> None:
        """Start from zero, as each `train()` does."""
        self._handed = self._correct = self._carried = None

    def let_go(self) -> None:
        """Hold on to nobody who listens."""
        self.after_log = _nothing_to_do

    def before_step(self) -> Any:
        """Return a copy of the sum as it is before a step."""
        import torch

        known = getattr(self.trainer, "_tr_loss", self._handed)
        return torch.zeros((), device=self.trainer.args.device) if known is None else known.detach().clone()

    def go_on_from(self, known: Any) -> None:
        """Go on from the sum of an earlier moment in a loop that was entered anew and has begun with zero."""
        if not hasattr(self.trainer, "_tr_loss"):  # else it is put back with everything else
            self._handed = self._carried = known.clone()

    def to_be_added(self, loss: Any) -> Any:
        """Return what the loop is to add for a loss: the first one brings what was added before the loop was left."""
        carried, self._carried = self._carried, None
        return loss if carried is None else carried + loss

    def set_back(self, before: Any) -> None:
        """Forget what was added since."""
        if hasattr(self.trainer, "_tr_loss"):
            self.trainer._tr_loss.copy_(before)  # noqa: SLF001  # the trainer's own sum
        else:
            self._correct = before.clone()

    def add(self, loss: Any) -> None:
        """Add one loss, as the loop does: another order would round differently."""
        if hasattr(self.trainer, "_tr_loss"):
            self.trainer._tr_loss += loss  # noqa: SLF001
        else:
            self._correct = self._correct + loss

    def _around_handing_over(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _maybe_log_save_evaluate(tr_loss: Any, *args: Any, **kwargs: Any) -> Any:
            if self._correct is not None:
                tr_loss.copy_(self._correct)
                self._correct = None
            self._handed = tr_loss  # before a save asks for it
            result = original(tr_loss, *args, **kwargs)
            self.after_log()
            return result

        return _maybe_log_save_evaluate

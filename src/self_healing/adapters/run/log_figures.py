"""What the trainer logs: true means, and the figures of healing beside them once there are any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..wrapping import Wrapping

if TYPE_CHECKING:
    from ..step.step_guard import StepGuard


GOODPUT = "healing/goodput"
"""The share of the time that went into steps which count in the end."""


class LogFigures:
    """Corrects and completes every dictionary that goes through the trainer's `log`.

    The trainer divides the sum of losses by the number of steps, also by those that were left out. As long as
    nothing has happened the logs stay what they would be; from then on they carry `healing/*`.
    """

    def __init__(
        self,
        trainer: Any,
        guard: StepGuard,
        more: Callable[[], dict[str, float]] = dict,
        goodput: Callable[[], float] | None = None,
    ) -> None:
        self.trainer = trainer
        self.guard = guard
        self._more = more
        """Returns figures of others, where there are any."""
        self._goodput = goodput
        self._last_step = 0
        self._last_skipped = 0
        self._was_scaled = False

    def attach(self, wrapping: Wrapping) -> None:
        """Come before the trackers, which get what `log` is given."""
        wrapping.wrap(self.trainer, "log", self._around_log)

    def begin(self) -> None:
        """Count from the step that training begins with, or from the last that was logged before a state was taken."""
        step = int(self.trainer.state.global_step)
        self._last_step = min(step, int(getattr(self.trainer, "_globalstep_last_logged", step)))
        self.guard.making_up.begins_at(step)
        self._last_skipped = self.guard.making_up.skipped_steps

    def figures(self) -> dict[str, float]:
        """Return what there is to say; nothing in a run where nothing has happened."""
        guard = self.guard
        self._was_scaled = self._was_scaled or guard.rate_scale.value != 1.0
        told: dict[str, float] = {
            "healing/skipped_steps": guard.making_up.skipped_steps,
            "healing/made_up_steps": guard.making_up.made_up_steps,
            "healing/replaced_steps": guard.making_up.replaced_steps,
        }
        told = {name: count for name, count in told.items() if count}
        if self._was_scaled:
            told["healing/lr_scale"] = guard.rate_scale.value
        return {**told, **self._more()}

    def figures_of_others(self) -> dict[str, float]:
        """Return the figures that are told by others."""
        return self._more()

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
            if "loss" in logs:
                self._correct_mean(logs)
                applied = self.guard.making_up.applied
                if "grad_norm" in logs and applied and applied[-1].step == int(self.trainer.state.global_step):
                    logs["grad_norm"] = applied[-1].norm  # the loop has kept that of the first attempt
            if "loss" in logs or "train_loss" in logs:
                figures = self.figures()
                if figures and self._goodput is not None:
                    figures[GOODPUT] = round(self._goodput(), 6)
                logs.update(figures)
            return original(logs, *args, **kwargs)

        return log

    def _correct_mean(self, logs: dict[str, float]) -> None:
        """Make it the mean over the steps that count."""
        step, skipped = int(self.trainer.state.global_step), self.guard.making_up.skipped_steps
        steps, left_out = step - self._last_step, skipped - self._last_skipped
        if left_out:
            counted = steps - left_out
            logs["loss"] = logs["loss"] * steps / counted if counted > 0 else float("nan")
        self._last_step, self._last_skipped = step, skipped

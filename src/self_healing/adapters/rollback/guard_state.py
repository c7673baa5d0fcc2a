"""What the guard has learned and decided, as a part of a state that can be returned to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..step.learning_rate import Ramp
from ..step.trl_counters import Counters
from ..step.window import MicroBatch, Window

if TYPE_CHECKING:
    from ...tensors.copies import Copies
    from ..step.step_guard import StepGuard


class GuardState:
    """The gate's baseline, the ramp of the learning rate, borrowed data, and what the result lacks.

    What was counted as healed stays counted; steps that were left out or took other data are trained again as they were.
    """

    def __init__(self, guard: StepGuard, copies: Copies | None = None) -> None:
        from ...tensors.state import keep

        self._guard = guard
        self._gate = guard.gate.state_dict()
        self._loss_sum = guard.loss_sum.before_step()
        self._kept_scale = guard.rate_scale.kept
        self._ramps = [(ramp, ramp.done) for ramp in guard.rate_scale.ramps]
        making_up = guard.making_up
        self._borrowed, self._spare = making_up.borrowed, making_up.spare  # its place in the data
        self._left_out, self._replaced = tuple(making_up.left_out), tuple(making_up.replaced)
        spare = self._spare if self._borrowed else None
        self._kept = keep(
            {
                "gate": self._gate,
                "loss_sum": self._loss_sum,
                "spare": None if spare is None else [spare.num_items, spare.inputs],
            },
            copies,
            "guard",
        )

    def values(self) -> dict[str, Any]:
        """Return it with tensors kept, for a process that comes after this one."""
        ramps = [[ramp.factor, ramp.steps, done] for ramp, done in self._ramps]
        return {**self._kept, "kept_scale": self._kept_scale, "ramps": ramps, "borrowed": self._borrowed}

    @staticmethod
    def for_a_file(guard: StepGuard) -> dict[str, Any]:
        """Return what is true at this moment, less borrowed data: a resumed trainer fetches them as its own."""
        return {
            "gate": guard.gate.state_dict(),
            "loss_sum": guard.loss_sum.before_step(),
            "kept_scale": guard.rate_scale.kept,
            "ramps": [[ramp.factor, ramp.steps, ramp.done] for ramp in guard.rate_scale.ramps],
        }

    @classmethod
    def take_over(cls, guard: StepGuard, values: Mapping[str, Any]) -> None:
        """Go on with what another process has learned."""
        guard.gate.load_state_dict(values["gate"])
        guard.gate.release()
        guard.loss_sum.go_on_from(values["loss_sum"])
        guard.rate_scale.kept = float(values["kept_scale"])
        guard.rate_scale.ramps = [Ramp(*ramp) for ramp in values["ramps"]]
        making_up = guard.making_up
        making_up.borrowed = int(values["borrowed"])  # its place in the data
        if values["spare"] is not None:
            num_items, inputs = values["spare"]
            batches = [MicroBatch(each, None) for each in inputs]
            making_up.spare = Window(0, num_items, Counters.of(guard.trainer), None, micro_batches=batches)

    def restore(self) -> None:
        """Put it back; steps that were not yet known to be applied have not happened."""
        guard = self._guard
        guard.forget_steps()
        guard.gate.load_state_dict(self._gate)
        guard.gate.release()
        guard.loss_sum.go_on_from(self._loss_sum)
        making_up = guard.making_up
        making_up.borrowed, making_up.spare = self._borrowed, self._spare
        making_up.left_out = list(self._left_out)
        if making_up.may_replace:  # else a loop was given other data, and is given them again
            making_up.replaced = list(self._replaced)
        self._restore_ramps()

    def _restore_ramps(self) -> None:
        """Put a ramp back to where it stood, unless the rate was cut anew since: that was decided, and stays."""
        scale = self._guard.rate_scale
        known = [ramp for ramp, _ in self._ramps]
        if scale.kept != self._kept_scale or any(not any(ramp is each for each in known) for ramp in scale.ramps):
            return
        for ramp, done in self._ramps:
            ramp.done = done
        scale.ramps = known


def is_settled(guard: StepGuard | None) -> bool:
    """Say whether every step so far is known to be applied; before that, the weights are no state of any step."""
    return guard is None or not guard.kept

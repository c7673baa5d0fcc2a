"""Whether loss and gradients are finite, for a loop that wants nothing else: looked at on the device, read when it has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .norms import parameters_of, total_norm
from .skip import SkippingOptimizer
from .telemetry import TelemetryRing

MOST_STEPS = 1000
"""Steps that were not finite whose numbers are kept."""


@dataclass(frozen=True, slots=True)
class Finiteness:
    """What is known of a step."""

    step: int
    """Which call of the check it was, counted from one; 0 where nothing has arrived yet."""
    is_finite: bool
    """Loss and gradients, on all ranks where a group was given."""
    loss: float
    """Of this process."""
    grad_norm: float
    """Of this process, where it looked at gradients; else zero."""
    consecutive: int
    """Steps up to this one that were not finite, one after the other."""
    should_stop: bool
    """As many as `max_consecutive`: skipping will not help any more."""


class FiniteCheck:
    """Finds a loss or gradients that are not finite without waiting for the device.

    `check(loss, model)` returns the newest that is known: on a GPU that is mostly the step before. `check.now()` waits for the
    step at hand. `check.step(optimizer)` updates only where the step is finite; a fused optimizer decides that on the device.
    """

    def __init__(self, max_consecutive: int = 10, *, group: Any = None) -> None:
        """Make a check.

        Args:
            max_consecutive: Steps one after the other that are not finite until `should_stop`.
            group: Where given (`torch.distributed.group.WORLD`, or another), all ranks of it know of the step of each, by one
                all-reduce of one number per step. Gradients that are averaged among ranks need none: they show it to all.

        """
        if max_consecutive < 1:
            raise ValueError(f"max_consecutive = {max_consecutive}: one step at least")
        self.max_consecutive = max_consecutive
        self._group = group
        self._ring = TelemetryRing()
        self._calls = 0
        self._found_inf: Tensor | None = None
        self.bad_steps: deque[int] = deque(maxlen=MOST_STEPS)
        """Which calls were not finite, the newest last."""
        self.total = 0
        """How many were."""
        self.known = Finiteness(0, True, float("nan"), 0.0, 0, False)
        """The newest that is known."""

    def __call__(
        self,
        loss: Tensor,
        parameters: torch.nn.Module | Iterable[Tensor] | None = None,
        *,
        gradients: Iterable[Tensor] | None = None,
    ) -> Finiteness:
        """Look at a loss and, where they are given, at gradients; return the newest that is known.

        Args:
            loss: One number.
            parameters: A model or its parameters, whose gradients are looked at.
            gradients: Gradients themselves, in the place of parameters.

        """
        if gradients is None:
            known = [] if parameters is None else parameters_of(parameters)
            gradients = [each.grad for each in known if each.grad is not None]
        with torch.no_grad():
            value = loss.detach().float().reshape(())
            norm = total_norm(list(gradients)).to(value.device, torch.float32, non_blocking=True)
            found = 1.0 - (value.isfinite() & norm.isfinite()).float()
            if self._group is not None:
                torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, group=self._group)
            self._found_inf = found
            self._calls += 1
            self._ring.push(self._calls, torch.stack((found, value, norm)))
        # Ranks have to know of the same steps at the same time, so that they stop together.
        for step, values in self._ring.ready() if self._group is None else self._ring.drain(but_newest=1):
            self._take(step, values)
        return self.known

    def now(self) -> Finiteness:
        """Wait for the device, and return what is known of the newest step."""
        for step, values in self._ring.drain():
            self._take(step, values)
        return self.known

    def step(self, optimizer: Optimizer, step: Callable[[], Any] | None = None) -> Any:
        """Update, unless the step that was looked at last is not finite: then weights, moments and step count stay.

        Only an optimizer that is not fused has to wait for the answer.

        Args:
            optimizer: Whose step it is.
            step: What to call in the place of `optimizer.step`.

        """
        call = optimizer.step if step is None else step
        if self._found_inf is None:
            raise RuntimeError("nothing was looked at yet: call check(loss, model) before check.step(optimizer)")
        found, self._found_inf = self._found_inf, None
        return SkippingOptimizer(optimizer).step_unless(found, call)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint should hold."""
        known = self.now()
        return {
            "calls": self._calls, "total": self.total, "consecutive": known.consecutive,
            "bad_steps": list(self.bad_steps),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self._ring.drain()
        self._calls, self.total, consecutive = int(state["calls"]), int(state["total"]), int(state["consecutive"])
        self.bad_steps = deque(state["bad_steps"], maxlen=MOST_STEPS)
        self.known = Finiteness(
            self._calls, not consecutive, float("nan"), 0.0, consecutive, consecutive >= self.max_consecutive
        )

    def _take(self, step: int, values: list[float]) -> None:
        found, loss, norm = values
        consecutive = self.known.consecutive + 1 if found else 0
        if found:
            self.total += 1
            self.bad_steps.append(step)
        self.known = Finiteness(step, not found, loss, norm, consecutive, consecutive >= self.max_consecutive)

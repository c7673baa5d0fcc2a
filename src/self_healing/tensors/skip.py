"""Not taking an optimizer step: on the device where the optimizer can, by dropping the gradients where it cannot.

Gradients of zero are no skip: momentum and weight decay still move the weights. Fused optimizers look at a tensor
called `found_inf` (made for a GradScaler) and leave weights, moments and step count alone where it is one, without
the host knowing. All others skip a parameter that has no gradient, and for that the host has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

Way = Literal["fused", "host"]
ResultT = TypeVar("ResultT")


class SkippingOptimizer:
    """An optimizer and the way in which one of its steps can be left out."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = innermost(optimizer)

    @property
    def way(self) -> Way:
        """`fused`: decided on the device, no wait; `host`: by dropping the gradients, once the host knows."""
        return way_to_skip(self.optimizer)

    def step_unless(self, found_inf: Tensor, step: Callable[[], ResultT]) -> ResultT:
        """Call `step`; it changes nothing where `found_inf` is one. Only the `host` way waits for the tensor."""
        if self.way == "host" and found_inf.item():
            self.drop_gradients()
        return step_unless(self.optimizer, found_inf, step)

    def drop_gradients(self) -> None:
        """Take all gradients away, so that the next step leaves weights and state alone."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside wrappers such as accelerate's: the one whose attributes count."""
    while isinstance(inside := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inside
    return optimizer


def way_to_skip(optimizer: Optimizer) -> Way:
    """Say how a step of this optimizer can be skipped now."""
    optimizer = innermost(optimizer)
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return "host"
    # The flag says what was asked for at construction; a group added later that is not fused raises on `found_inf`.
    if not all(group.get("fused", True) for group in optimizer.param_groups):
        return "host"
    return "host" if _needs_a_first_step(optimizer) else "fused"


def step_unless(optimizer: Optimizer, found_inf: Tensor, step: Callable[[], ResultT]) -> ResultT:
    """Call `step` with `found_inf` in place where the optimizer honours it; otherwise only call it."""
    with skipped_where(optimizer, found_inf):
        return step()


@contextmanager
def skipped_where(optimizer: Optimizer, found_inf: Tensor) -> Iterator[None]:
    """Put `found_inf` in place, where the optimizer honours it, for the steps taken inside."""
    optimizer = innermost(optimizer)
    # A GradScaler sets both itself for the time of the step, from gradients it has looked at: that is enough.
    taken = hasattr(optimizer, "found_inf") or hasattr(optimizer, "grad_scale")
    if taken or way_to_skip(optimizer) != "fused":
        yield
        return
    _give_momentum_a_start(optimizer)
    optimizer.grad_scale = None  # type: ignore[attr-defined]  # torch's own protocol, not declared
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del optimizer.grad_scale  # type: ignore[attr-defined]
        del optimizer.found_inf  # type: ignore[attr-defined]


def _needs_a_first_step(optimizer: Optimizer) -> bool:
    """Say whether a skipped step would leave momentum behind that cannot be given a start beforehand."""
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["dampening"] != 0.0 and _without_momentum(optimizer, group) for group in optimizer.param_groups
    )


def _give_momentum_a_start(optimizer: Optimizer) -> None:
    """Fill in the momentum of a fused SGD that has none yet.

    At its first step it allocates the momentum without filling it, so that a skipped first step would leave memory
    garbage there for the next one. From zero, the first momentum is the gradient itself, as without this.
    """
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for parameter in _without_momentum(optimizer, group):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def _without_momentum(optimizer: Optimizer, group: dict[str, list[Tensor]]) -> list[Tensor]:
    if not group["momentum"]:
        return []
    state = optimizer.state
    return [
        parameter
        for parameter in group["params"]
        if parameter.grad is not None and state.get(parameter, {}).get("momentum_buffer") is None
    ]

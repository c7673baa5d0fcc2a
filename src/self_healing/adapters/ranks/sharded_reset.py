"""After a failure in the middle of a step: FSDP2's modules as they were before the step.

FSDP2 gathers parameters before a layer runs and lets go of them afterwards. An exception in between leaves layers gathered,
and trackers of the backward pass believing that it is still under way: the next step runs without a word and leaves the
parameters gathered, which the optimizer does not know. torch 2.13 has a method to clear that up (`reset_iter_state`), which
forgets nothing but the gradients that autograd had already added to gathered parameters: they would be counted twice.

Nothing here helps a rank that has failed alone: the others wait in a collective that it will not join.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.errors import CapabilityMissing

if TYPE_CHECKING:
    from collections.abc import Iterator

RESET = "reset_iter_state"
NEEDED = ("fsdp_params", "is_sharded", "_training_state")
NEEDED_OF_EACH = ("sharded_param", "unsharded_accumulated_grad")


@dataclass(frozen=True, slots=True)
class Reset:
    """What was put back."""

    modules: int = 0
    """How many modules FSDP2 has; zero where a model is not sharded by it, and there was nothing to do."""
    gathered: tuple[str, ...] = ()
    """The groups of parameters that were found gathered."""
    unreduced: tuple[str, ...] = ()
    """Those with gradients that were not reduced yet, which are gone now. In a run that accumulates without reducing
    (`set_requires_gradient_sync(False)`) earlier micro-batches were among them: the whole step has to begin anew."""


def why_not_reset(model: Any) -> str | None:
    """Say why a model could not be put back after a failure; None where it could. To be asked before training."""
    from ...tensors.sharded import groups_of, sharded_modules

    modules = sharded_modules(model.modules())
    groups = [group for module in modules for group in groups_of(module)]
    missing = [f"FSDPModule.{RESET}"] if any(not hasattr(module, RESET) for module in modules) else []
    missing += ["FSDPState._fsdp_param_groups"] if modules and not groups else []
    missing += [f"FSDPParamGroup.{name}" for name in NEEDED if any(not hasattr(group, name) for group in groups)]
    if not missing:
        each = [parameter for group in groups for parameter in group.fsdp_params]
        missing = [f"FSDPParam.{name}" for name in NEEDED_OF_EACH if any(not hasattr(one, name) for one in each)]
    if not missing:
        return None
    import torch

    return (
        f"FSDP2 of torch {torch.__version__} has no {', '.join(missing)}, so its modules cannot be put back after a failure "
        "in the middle of a step: the processes have to start anew (torch 2.13 is known to work)"
    )


def reset_after_failure(model: Any, *, keep_gradients: bool = False) -> Reset:
    """Put the modules of FSDP2 back to where they were before the step, so that it can be run again.

    To be called on every rank, outside of the `except` block, after the same failure at the same point on all of them;
    none of them starts a collective here. Of a model that is not sharded only the gradients are dropped.

    Args:
        model: The model, wrapped or not.
        keep_gradients: Leave reduced gradients alone, of earlier micro-batches and of this one, for somebody who knows
            which of them hold what (`GradientMarks.undo`, unless a hook of the user's own on the gradient of a shard
            has raised: those of one group are reduced together); by default the step begins without any.

    Raises:
        CapabilityMissing: this torch lacks what is needed; nothing was touched.

    """
    from ...tensors.sharded import sharded_modules

    reason = why_not_reset(model)
    if reason is not None:
        raise CapabilityMissing(reason)
    modules = sharded_modules(model.modules())
    gathered = tuple(dict.fromkeys(_name(group) for group in _groups(modules) if not group.is_sharded))
    for root in _roots(modules):
        root.reset_iter_state()
    unreduced: list[str] = []
    for group in _groups(modules):
        for parameter in group.fsdp_params:
            whole = getattr(parameter, "_unsharded_param", None)  # there is none before the first forward pass
            if parameter.unsharded_accumulated_grad is not None or (whole is not None and whole.grad is not None):
                unreduced.append(_name(group))
            parameter.unsharded_accumulated_grad = None
            if whole is not None:
                whole.grad = None
    if not keep_gradients:
        for parameter in model.parameters():
            parameter.grad = None
    still = [_name(group) for group in _groups(modules) if not group.is_sharded]
    if still:
        raise CapabilityMissing(
            f"FSDP2 did not let go of the parameters of {', '.join(still)}: start the processes anew"
        )
    return Reset(len(modules), gathered, tuple(dict.fromkeys(unreduced)))


def _roots(modules: list[Any]) -> Iterator[Any]:
    """Yield the modules whose forward pass was called from outside: each of them answers for all below it."""
    for module in modules:
        if module._get_fsdp_state()._is_root:  # noqa: SLF001  # None before the first forward pass: nothing to do
            yield module


def _groups(modules: list[Any]) -> Iterator[Any]:
    from ...tensors.sharded import groups_of

    for module in modules:
        yield from groups_of(module)


def _name(group: Any) -> str:
    return getattr(group, "_module_fqn", None) or "the outermost module"

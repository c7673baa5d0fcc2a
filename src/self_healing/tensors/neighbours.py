"""Replace weights that are not finite by the average of the same weights in the nearest sound layers.

Layers of one stack are trained from the same beginning towards similar ends, and each adds only a little to what passes
through, so that a neighbour's weight is a better guess than zeros or noise (CheckFree, arXiv 2506.15461). Only what is
broken is replaced: measured on small models, the sound rest of a layer is worth more than a layer of one piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .skip import innermost

STACKS = (nn.ModuleList, nn.Sequential)
COUNTERS = frozenset({"step"})
"""What optimizers keep of a parameter besides moments, and what stays."""


class NoNeighboursError(ValueError):
    """What is broken cannot be had from neighbours; nothing was touched."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """One layer that was mended."""

    layer: str
    neighbours: tuple[str, ...]
    tensors: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.tensors)} from {' and '.join(self.neighbours)}"


@dataclass(frozen=True, slots=True)
class _Stack:
    """Layers with the same parameters, in their order; others may lie between them."""

    name: str
    layers: dict[str, nn.Module]


def average_broken_layers(model: nn.Module, optimizer: Optimizer) -> list[Averaged]:
    """Mend every weight that is not finite and set its moments to zero, or raise and leave everything as it is."""
    broken = [name for name, weight in model.named_parameters(remove_duplicate=False) if not _is_finite(weight)]
    if not broken:
        raise NoNeighboursError("all weights are finite")
    places = {name: _place_of(model, name) for name in broken}
    by_layer: dict[str, list[str]] = {}
    stacks: dict[str, _Stack] = {}
    for name, place in places.items():
        if place is None:
            raise NoNeighboursError(f"{name} belongs to no stack of equal layers")
        stack, layer = place
        stacks[layer] = stack
        by_layer.setdefault(layer, []).append(name)
    plans = [
        Averaged(layer, _neighbours(stacks[layer], layer, by_layer), tuple(names)) for layer, names in by_layer.items()
    ]
    mended: set[Tensor] = set()
    for plan in plans:
        for name in plan.tensors:
            mended.add(_average(model, name, plan))
    _forget_moments(optimizer, mended)
    return plans


def _place_of(model: nn.Module, name: str) -> tuple[_Stack, str] | None:
    """Return the outermost stack that a parameter belongs to, and its layer: experts inside a layer are no neighbours."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        prefix, member = ".".join(parts[: depth - 1]), parts[depth - 1]
        owner = model.get_submodule(prefix)
        if not isinstance(owner, STACKS) or len(parts) == depth:
            continue
        children = dict(owner.named_children())
        wanted = _signature(children[member])
        equal = {_joined(prefix, key): child for key, child in children.items() if _signature(child) == wanted}
        if wanted and len(equal) > 1:
            return _Stack(prefix or "the model", equal), _joined(prefix, member)
    return None


def _neighbours(stack: _Stack, layer: str, broken: dict[str, list[str]]) -> tuple[str, ...]:
    """Return the nearest sound layer on each side, one at an end of the stack."""
    sick = [name for name in stack.layers if name in broken]
    if 2 * len(sick) > len(stack.layers):
        raise NoNeighboursError(f"{len(sick)} of the {len(stack.layers)} layers of {stack.name} are broken")
    names = list(stack.layers)
    place = names.index(layer)
    before = next((name for name in reversed(names[:place]) if name not in broken), None)
    after = next((name for name in names[place + 1 :] if name not in broken), None)
    return tuple(name for name in (before, after) if name is not None)


@torch.no_grad()
def _average(model: nn.Module, name: str, plan: Averaged) -> Tensor:
    weight = model.get_parameter(name)
    own = name.removeprefix(f"{plan.layer}.")
    others = [model.get_parameter(f"{layer}.{own}") for layer in plan.neighbours]
    # Single precision for the sum of two half-precision numbers, which may overflow.
    mean = torch.stack([other.to(weight.device, torch.promote_types(other.dtype, torch.float32)) for other in others])
    weight.copy_(mean.mean(dim=0))
    return weight


@torch.no_grad()
def _forget_moments(optimizer: Optimizer, mended: set[Tensor]) -> None:
    """Set the moments of mended weights to zero, and all that are not finite; what counts steps stays as it is."""
    states = innermost(optimizer).state
    for weight, state in list(states.items()):
        tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and key not in COUNTERS}
        if weight not in mended and all(_is_finite(value) for value in tensors.values()):
            continue
        if all(value.shape == weight.shape and value.is_floating_point() for value in tensors.values()):
            for value in tensors.values():
                value.zero_()
        else:  # packed in a way that only its optimizer knows: it begins anew where there is none
            state.clear()


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _signature(layer: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (weight.shape, weight.dtype) for name, weight in layer.named_parameters(remove_duplicate=False)}


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name

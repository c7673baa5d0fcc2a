"""What of a model was finite before its first step: a training that begins with NaN cannot be mended by a return.

Weights must be finite then. Of buffers some hold infinities by design, such as masks, which are left alone: only what was
finite at first is looked at later. A running mean that became NaN is in no loss of a training step, and every evaluation
and every checkpoint is worthless all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from .sharded import is_sharded, local_of

MEASURED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Numbers of which torch can tell everywhere whether they are finite."""


def floating_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that can cease to be finite, with their names: of what is sharded this process's part."""
    return floating(model.named_buffers())


def never_finite(model: nn.Module) -> frozenset[str]:
    """Name the buffers and masks of a model that nobody has trained yet which are not finite; waits for the device."""
    buffers = _are_finite(floating_buffers(model))
    return frozenset(name for name, is_finite in buffers.items() if not bool(is_finite)) | _true(_are_masks(model))


class FiniteAtFirst:
    """Remembers what was finite when it was made, without waiting for the device."""

    def __init__(self, model: nn.Module) -> None:
        weights = dict(floating(model.named_parameters()))
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._weights = _are_finite((name, weight) for name, weight in weights.items() if name in trained)
        # What nothing trains may be a mask all the same: infinities are no fault of it.
        self._weights.update({n: ~torch.isnan(weight).any() for n, weight in weights.items() if n not in trained})
        self._buffers = _are_finite(floating_buffers(model))
        self._are_masks = _are_masks(model)

    @functools.cached_property
    def masks(self) -> frozenset[str]:
        """Weights that nothing trains and that held infinities at first, by design; waits for the device."""
        return _true(self._are_masks)

    @property
    def is_known(self) -> bool:
        """Whether it can be said without waiting for a device."""
        return all(flag.device.type == "cpu" for flag in self._weights.values())

    def broken_weights(self) -> list[str]:
        """Return the weights that were broken at first: not finite, or NaN where nothing trains them."""
        return [name for name, is_sound in self._weights.items() if not bool(is_sound)]

    def broken_buffers(self, model: nn.Module, left_alone: Collection[str]) -> list[str]:
        """Return the buffers that were finite at first and are not now; waits for the device."""
        return [
            name
            for name, is_finite in _are_finite(floating_buffers(model)).items()
            if name in self._buffers and name not in left_alone and not bool(is_finite) and bool(self._buffers[name])
        ]


def _are_masks(model: nn.Module) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    # Of what is sharded each process sees its part, and all have to say the same.
    frozen = {n: weight for n, weight in named.items() if not (weight.requires_grad or is_sharded(weight))}
    return {n: torch.isinf(weight).any() & ~torch.isnan(weight).any() for n, weight in floating(frozen.items())}


def _true(flags: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(name for name, flag in flags.items() if bool(flag))


def _are_finite(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.isfinite(tensor).all() for name, tensor in tensors}


def floating(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of which can be told whether they are finite; of what is sharded this process's part."""
    for name, tensor in named:
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            continue
        if tensor.dtype in MEASURED and tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested):
            yield name, local_of(tensor).detach()

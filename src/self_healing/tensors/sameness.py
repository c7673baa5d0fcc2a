"""Whether a model or an optimizer still consists of the same tensors: asked before every snapshot, so it has to be quick.

Lists are compared as a whole, and what they are made of is fetched without a line of python for each tensor where that
can be had. Objects are compared by their number, which is theirs only while they live: `Sight.held` keeps them alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What was there at one moment."""

    features: list[Any]
    """Equal where nothing has changed."""
    held: list[object]

    def is_like(self, other: Sight) -> bool:
        """Say whether nothing has changed between two moments."""
        return self.features == other.features


def sight_of_module(
    modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], with_values: Sequence[nn.Parameter]
) -> Sight:
    """Look at what modules hold now.

    Args:
        modules: All of them, as they were found once.
        parameters: All of them, likewise.
        with_values: Those whose values are of interest.

    """
    holders = [
        holder
        for module in modules
        for holder in (module._modules, module._parameters, module._buffers)  # noqa: SLF001
    ]
    held = list(chain.from_iterable(map(dict.values, holders)))  # type: ignore[arg-type]  # they are dictionaries
    buffers = [each for module in modules for each in module._buffers.values() if each is not None]  # noqa: SLF001
    gradients = [parameter.grad for parameter in parameters]
    features = [
        list(map(len, holders)),
        list(chain.from_iterable(holders)),
        list(map(id, held)),
        list(map(id, gradients)),
        [parameter.requires_grad for parameter in parameters],
        [vars(module).get("max_norm") for module in modules],
        *_where(with_values),
        *_where(buffers),
        *_where([each for each in gradients if each is not None]),
    ]
    return Sight(features, [*held, *gradients])


def sight_of_state(state: Mapping[Tensor, Any], are_kept: Iterable[bool]) -> Sight:
    """Look at the state of an optimizer.

    Args:
        state: A dictionary for each parameter, or something else, which is only held.
        are_kept: For each entry of all dictionaries whether it is a tensor that is of interest.

    """
    owners, parts = list(state), list(state.values())
    dictionaries = [part for part in parts if isinstance(part, dict)]
    tensors = list(compress(chain.from_iterable(map(dict.values, dictionaries)), are_kept))
    features = [
        list(map(id, owners)),
        list(map(type, parts)),
        list(map(len, dictionaries)),
        list(chain.from_iterable(dictionaries)),
        list(map(id, tensors)),
        *_where([each for each in tensors if isinstance(each, Tensor)]),
    ]
    return Sight(features, [*owners, *tensors])


def _where(tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
    """Return where tensors lie and how; no two that live on different devices have one address."""
    return (
        list(map(Tensor.data_ptr, tensors)),
        [tensor.shape for tensor in tensors],
        list(map(Tensor.stride, tensors)),
        [tensor.dtype for tensor in tensors],
    )

"""Whether a model or an optimizer still consists of the same tensors: asked before every snapshot, so it has to be quick.

Lists are compared as a whole, and what they are made of is fetched without a line of python for each tensor where that
can be had. Objects are compared by their number, which is theirs only while they live: `Sight.held` keeps them alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

_holders = attrgetter("_modules", "_parameters", "_buffers")
_requires_grad = attrgetter("requires_grad")
_shape = attrgetter("shape")
_dtype = attrgetter("dtype")


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
    modules: Sequence[nn.Module],
    parameters: Sequence[nn.Parameter],
    with_values: Sequence[nn.Parameter],
    embeddings: Sequence[nn.Module],
) -> Sight:
    """Look at what modules hold now.

    Args:
        modules: All of them, as they were found once.
        parameters: All of them, likewise.
        with_values: Those whose values are of interest.
        embeddings: The modules that can limit the norm of their rows.

    """
    holders = list(chain.from_iterable(map(_holders, modules)))
    sizes = list(map(len, holders))
    filled = list(compress(holders, sizes))  # most are empty
    held = list(chain.from_iterable(map(dict.values, filled)))
    with_buffers = compress(holders[2::3], sizes[2::3])
    buffers = [each for holder in with_buffers for each in holder.values() if each is not None]
    gradients = [parameter.grad for parameter in parameters]
    features = [
        sizes,
        list(chain.from_iterable(filled)),
        list(map(id, held)),
        list(map(id, gradients)),
        list(map(_requires_grad, parameters)),
        [getattr(module, "max_norm", None) for module in embeddings],
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
        list(map(_shape, tensors)),
        list(map(Tensor.stride, tensors)),
        list(map(_dtype, tensors)),
    )

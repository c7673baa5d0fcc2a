"""Whether a model or an optimizer still consists of the same tensors: asked before every snapshot, so it has to be quick.

Lists are compared as a whole, without a line of python for each tensor where that can be had. What was there is kept
alive, so that nothing new can have its address or its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn

from .sharded import PLAIN, local_of

_holders = attrgetter("_modules", "_parameters", "_buffers")
_gradient = attrgetter("grad")
_requires_grad = attrgetter("requires_grad")
_shape = attrgetter("shape")
_dtype = attrgetter("dtype")


class NotedModules:
    """What modules held at one moment."""

    def __init__(
        self,
        modules: Sequence[nn.Module],
        parameters: Sequence[nn.Parameter],
        with_values: Sequence[nn.Parameter],
        embeddings: Sequence[nn.Module],
    ) -> None:
        """Look at what they hold now.

        Args:
            modules: All of them.
            parameters: All of them, likewise.
            with_values: Those whose values are of interest.
            embeddings: The modules that can limit the norm of their rows.

        """
        holders: list[dict[str, Any]] = list(chain.from_iterable(map(_holders, modules)))
        self._filled = [holder for holder in holders if holder]
        self._empty = [holder for holder in holders if not holder]  # most of them
        self._views = [holder.values() for holder in self._filled]
        self._held = [*chain.from_iterable(self._views)]
        self._names = [*chain.from_iterable(self._filled)]
        self._parameters, self._embeddings = parameters, embeddings
        self._gradients = [*map(_gradient, parameters)]
        self._flags, self._limits = self._now()
        buffers = [each for holder in holders[2::3] for each in holder.values() if each is not None]
        gradients = [each for each in self._gradients if each is not None]
        self._tensors = [*with_values, *buffers, *gradients]
        self._places = _places_of(self._tensors)

    def are_same(self) -> bool:
        """Say whether they hold the same and nothing else."""
        return (
            not any(self._empty)
            and _are_same([*chain.from_iterable(self._views)], self._held)
            and [*chain.from_iterable(self._filled)] == self._names
            and _are_same([*map(_gradient, self._parameters)], self._gradients)
            and self._now() == (self._flags, self._limits)
            and _places_of(self._tensors) == self._places
        )

    def _now(self) -> tuple[list[bool], list[Any]]:
        limits = [getattr(module, "max_norm", None) for module in self._embeddings]
        return [*map(_requires_grad, self._parameters)], limits


class NotedState:
    """What an optimizer's state consisted of at one moment."""

    def __init__(self, state: Mapping[Tensor, Any], are_kept: Iterable[bool]) -> None:
        """Look at it.

        Args:
            state: A dictionary for each parameter, or something else, which is only looked at as a whole.
            are_kept: For each entry of all dictionaries whether it is a tensor that is of interest.

        """
        self._state, self._are_kept = state, [*are_kept]
        self._owners = [*state]
        self._kinds, dictionaries = self._parts()
        self._sizes, self._keys = [*map(len, dictionaries)], [*chain.from_iterable(dictionaries)]
        self._tensors: list[Tensor] = self._kept_of(dictionaries)
        self._places = _places_of(self._tensors)

    def is_same(self) -> bool:
        """Say whether it consists of the same and nothing else."""
        kinds, dictionaries = self._parts()
        return (
            _are_same([*self._state], self._owners)
            and kinds == self._kinds
            and [*map(len, dictionaries)] == self._sizes
            and [*chain.from_iterable(dictionaries)] == self._keys
            and _are_same(self._kept_of(dictionaries), self._tensors)
            and _places_of(self._tensors) == self._places
        )

    def _parts(self) -> tuple[list[type], list[dict[str, Any]]]:
        parts = [*self._state.values()]
        return [*map(type, parts)], [part for part in parts if isinstance(part, dict)]

    def _kept_of(self, dictionaries: Sequence[dict[str, Any]]) -> list[Any]:
        return [*compress(chain.from_iterable(map(dict.values, dictionaries)), self._are_kept)]


def _are_same(these: Sequence[object], those: Sequence[object]) -> bool:
    return len(these) == len(those) and all(map(is_, these, those))


def _places_of(tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
    """Return where tensors lie and how; no two that live on different devices have one address."""
    if not PLAIN.issuperset(map(type, tensors)):
        tensors = [*map(local_of, tensors)]
    return (
        [*map(Tensor.data_ptr, tensors)],
        [*map(_shape, tensors)],
        [*map(Tensor.stride, tensors)],
        [*map(_dtype, tensors)],
    )

"""How much memory a kept batch takes: an estimate, cheap enough for every step, and too much rather than too little."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import Any

LEVELS = 3
"""How many objects inside of one another are looked into: a graph keeps its tensors in a store that it holds."""
MOST_LOOKED_AT = 1000
"""Of what a container inside of an object holds: it may be the vocabulary of a tokenizer. The rest is taken for alike."""
UNJUDGED_BYTES = 1 << 20
"""What a thing counts for that does not show what it holds: it may decode a video."""
TOKEN_BYTES = 256
"""What a tokenizer's encoding holds of each token: numbers, masks, its text and the place of that."""
ONE_BYTE_MODES = frozenset({"1", "L", "P"})
"""Images of which a pixel takes one byte. It takes four in most others and never more, also with three bands."""

PLAIN = frozenset({str, int, float, bool, bytes, bytearray, complex, type(None)})
"""Types of which python says all that they take."""
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, Mapping)
_HOLDING_NOTHING = sys.stdlib_module_names | {"torch"}
"""Whose types take what they say where they have no attributes: dates, devices, types of numbers."""


def held_bytes(thing: Any, seen: set[int], levels: int = LEVELS) -> int:
    """Return how much memory a thing takes together with what it holds; nothing where it was seen before."""
    if type(thing) in PLAIN:
        return sys.getsizeof(thing)
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, sys.modules["torch"].Tensor):
        return nbytes_of(thing)
    nbytes = getattr(thing, "nbytes", None)
    if isinstance(nbytes, int):
        points_elsewhere = type(thing).__module__ == "numpy" and thing.dtype.hasobject
        return nbytes + (_all(thing.flat, thing.size, seen, levels) if points_elsewhere else 0)
    if isinstance(thing, _CONTAINERS):
        return _all(thing.values() if isinstance(thing, Mapping) else thing, len(thing), seen, levels)
    outside = _outside_of_python(thing)
    return _by_attributes(thing, seen, levels) if outside is None else outside


def _all(things: Iterable[Any], count: int, seen: set[int], levels: int) -> int:
    looked_at = sum(held_bytes(each, seen, levels) for each in islice(things, MOST_LOOKED_AT))
    return looked_at * max(count, MOST_LOOKED_AT) // MOST_LOOKED_AT


def _outside_of_python(thing: Any) -> int | None:
    """Return the size of what keeps its contents where python does not see them; None for all else."""
    images, tokenizers = sys.modules.get("PIL.Image"), sys.modules.get("tokenizers")
    if images is not None and isinstance(thing, images.Image):
        # Also of one that is not decoded yet: whoever uses it decodes it in its place.
        width, height = thing.size
        return int(width * height * (1 if thing.mode in ONE_BYTE_MODES else 4))
    if tokenizers is not None and isinstance(thing, tokenizers.Encoding):
        return len(thing) * TOKEN_BYTES
    return None


def _by_attributes(thing: Any, seen: set[int], levels: int) -> int:
    itself = sys.getsizeof(thing)
    if isinstance(thing, str | bytes | bytearray | int | float | type | ModuleType | FunctionType):
        return itself
    slots = [vars(kind)["__slots__"] for kind in type(thing).__mro__ if "__slots__" in vars(kind)]
    names = chain.from_iterable([each] if isinstance(each, str) else each for each in slots)
    attributes = [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name, None) for name in names)]
    if not attributes and type(thing).__module__ in _HOLDING_NOTHING:
        return itself
    if not attributes or not levels:
        return UNJUDGED_BYTES
    return itself + sum(held_bytes(each, seen, levels - 1) for each in attributes)


def nbytes_of(tensor: Any) -> int:
    """Return how much memory the values of a tensor take, also of a kind that torch does not say it of."""
    import torch

    if tensor.is_nested:
        return sum(int(each.nbytes) for each in tensor.unbind())
    if tensor.layout is torch.strided:
        return int(tensor.nbytes)
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()  # noqa: SLF001  # coalesced or not
    return int(values.nbytes)

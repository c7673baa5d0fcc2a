"""What is captured besides tensors as plain JSON, and back: nothing in it can be run, and tensors are only named.

What JSON has no word for is a table of one entry whose name begins with a dollar: `{"$float": "nan"}`,
`{"$tensor": "optimizer.exp_avg/0.weight"}`, `{"$tuple": [...]}`, `{"$items": [[1, 2]]}` for a table with other keys than
text, `{"$unknown": "SomeClass"}` for what is left out. A table that happens to look like this is written by its items.
"""

from __future__ import annotations

import enum
import math
from collections import UserDict, deque
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from .host_layout import Place
from .host_slot import HostCopy
from .state import KeptTensor

_MARK = "$"
_DEEPEST = 100


def to_plain(kept: Any, names: Mapping[Place, str], depth: int = 0) -> Any:
    """Return what `keep` has made of something as JSON; the names of tensors are those of `HostCopies.described`."""
    if kept is None or type(kept) in (bool, int, str):
        return kept
    if isinstance(kept, float):  # numpy's too
        return float(kept) if math.isfinite(kept) else {"$float": repr(float(kept))}
    if isinstance(kept, KeptTensor):
        place = kept.copy.place if isinstance(kept.copy, HostCopy) else None
        name = None if place is None else names.get(place)
        return {"$unknown": "Tensor"} if name is None else {"$tensor": name}
    if isinstance(kept, enum.Enum):
        return to_plain(kept.value, names, depth + 1)
    if isinstance(kept, int | str):
        return int(kept) if isinstance(kept, int) else str(kept)
    if depth > _DEEPEST:
        return {"$unknown": "nested too deep"}
    return _container(kept, lambda inner: to_plain(inner, names, depth + 1))


def _container(kept: Any, of: Callable[[Any], Any]) -> Any:
    if isinstance(kept, UserDict):
        return of(kept.data)
    if isinstance(kept, Mapping):
        if all(type(key) is str for key in kept) and not any(key.startswith(_MARK) for key in kept):
            return {key: of(inner) for key, inner in kept.items()}
        return {"$items": [[of(key), of(inner)] for key, inner in kept.items()]}
    if isinstance(kept, list | deque):
        return [of(each) for each in kept]
    if isinstance(kept, tuple):
        return {"$tuple": [of(each) for each in kept]}
    if isinstance(kept, set | frozenset):
        return {"$set": [of(each) for each in sorted(kept, key=repr)]}
    if isinstance(kept, Tensor) or type(kept).__module__ == "numpy":
        is_small = getattr(kept, "size", 0) == 1 and hasattr(kept, "item")
        return of(kept.item()) if is_small and not isinstance(kept, Tensor) else {"$unknown": type(kept).__name__}
    return {"$unknown": type(kept).__name__}


def from_plain(plain: Any, tensor: Callable[[str], Any]) -> Any:
    """Return what `to_plain` was given, with tensors as `tensor` has them by name.

    Raises:
        ValueError: it holds something that was left out, or is not understood.

    """
    if isinstance(plain, list):
        return [from_plain(each, tensor) for each in plain]
    if not isinstance(plain, dict):
        return plain
    marked = [key for key in plain if key.startswith(_MARK)]
    if not marked:
        return {key: from_plain(inner, tensor) for key, inner in plain.items()}
    match plain:
        case {"$float": "nan" | "inf" | "-inf" as word}:
            return float(word)
        case {"$tensor": str(name)}:
            return tensor(name)
        case {"$tuple": list(values)}:
            return tuple(from_plain(each, tensor) for each in values)
        case {"$set": list(values)}:
            return {from_plain(each, tensor) for each in values}
        case {"$items": list(pairs)}:
            return {from_plain(key, tensor): from_plain(inner, tensor) for key, inner in pairs}
        case {"$unknown": str(kind)}:
            raise ValueError(f"a {kind} was left out")
        case _:
            raise ValueError(f"{marked[0]!r} is not understood")

"""The attributes of ordinary objects, set aside and put back: what a rehearsal may change besides tensors."""

from __future__ import annotations

import io
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

MOST_ITEMS = 100_000
"""Longer containers are taken for data, which nobody changes, and are not copied."""
MOST_OBJECTS = 500
CONTAINERS = (list, dict, set, OrderedDict, defaultdict, deque)


class ObjectState:
    """Which attributes objects have, what their lists and dictionaries hold, and where their generators stand.

    Only the first level is looked at; with `depth` also objects that hang below: a dataset inside a subset, the
    generator of a collator.
    """

    def __init__(self, *things: Any, depth: int = 0) -> None:
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._rewinds: list[Callable[[], object]] = []
        self.one_shot: list[str] = []
        """Iterators that were found: they cannot be read without being used up."""
        self._seen: set[int] = set()
        for thing in things:
            if isinstance(getattr(thing, "__dict__", None), dict) and not isinstance(thing, Iterator):
                self._look_at_attributes(thing, depth, type(thing).__name__)  # also of a module: it was asked for
            else:
                self._look(thing, depth, type(thing).__name__)

    def restore(self) -> None:
        """Put attributes, contents and generators back, and remove attributes that did not exist."""
        for own, before in self._attributes:
            for name in own.keys() - before.keys():
                del own[name]
            for name, value in before.items():
                if name not in own or own[name] is not value:
                    own[name] = value
        for container, before in self._contents:
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(before)
        for rewind in self._rewinds:
            rewind()

    def _look(self, thing: Any, depth: int, path: str) -> None:
        thing = getattr(thing, "__self__", thing)  # a bound method stands for its object
        if thing is None or id(thing) in self._seen or len(self._seen) >= MOST_OBJECTS:
            return
        self._seen.add(id(thing))
        if _is_left_alone(thing) or self._is_generator(thing, path):
            return
        if type(thing) in CONTAINERS:
            self._look_into(thing, depth, path)
            return
        if isinstance(getattr(thing, "__dict__", None), dict):
            self._look_at_attributes(thing, depth, path)

    def _look_at_attributes(self, thing: Any, depth: int, path: str) -> None:
        own = vars(thing)
        self._attributes.append((own, dict(own)))
        for name, value in own.items():
            if type(value) in CONTAINERS:
                self._look_into(value, depth, f"{path}.{name}")
            elif depth > 0:
                self._look(value, depth - 1, f"{path}.{name}")

    def _look_into(self, container: Any, depth: int, path: str) -> None:
        if len(container) > MOST_ITEMS:
            return
        self._contents.append((container, dict(container) if isinstance(container, dict) else list(container)))
        if depth > 0 and len(container) <= 32:
            for value in container.values() if isinstance(container, dict) else container:
                self._look(value, depth - 1, path)

    def _is_generator(self, thing: Any, path: str) -> bool:
        """Note how to rewind random generators and files; say whether it was one."""
        import torch

        if isinstance(thing, torch.Generator):
            here = thing.get_state()
            self._rewinds.append(lambda: thing.set_state(here))
        elif isinstance(thing, random.Random):
            place = thing.getstate()
            self._rewinds.append(lambda: thing.setstate(place))
        elif type(thing).__module__.startswith("numpy.random") and hasattr(thing, "bit_generator"):
            bits = thing.bit_generator.state
            self._rewinds.append(lambda: setattr(thing.bit_generator, "state", bits))
        elif type(thing).__module__.startswith("numpy.random") and hasattr(thing, "set_state"):
            numbers = thing.get_state()
            self._rewinds.append(lambda: thing.set_state(numbers))
        elif isinstance(thing, io.IOBase) and thing.seekable():
            position = thing.tell()
            self._rewinds.append(lambda: thing.seek(position))
        elif isinstance(thing, Iterator):
            self.one_shot.append(path)
        else:
            return False
        return True


def _is_left_alone(thing: Any) -> bool:
    """Say whether an object is none of ours to look into: code, tensors, and modules, which are captured apart."""
    import torch

    left_alone = (type, FunctionType, ModuleType, torch.Tensor, torch.nn.Module, str, bytes, int, float)
    return isinstance(thing, left_alone)

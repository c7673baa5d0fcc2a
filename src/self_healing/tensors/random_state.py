"""All the random numbers that a training step may draw, set aside and put back.

A step is repeated exactly only if dropout, shuffling and augmentation draw the same numbers again. Reading the
generators took 44 microseconds on one CPU core (python 8, numpy 33, torch 1), so it can be done before every step.
Where python and numpy have drawn nothing since the last time, which one look at their memory tells, it takes 5, and what
was read before is returned once more.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import random
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

StateT = TypeVar("StateT")

TWISTER_BYTES = 4 * (624 + 1)
"""The state of a Mersenne Twister and its position in it, in words of 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class RandomState:
    """Where the random generators of python, numpy and torch stand."""

    python: tuple[Any, ...]
    cpu: Tensor
    numpy: Mapping[str, Any] | None = None
    """None where nothing had imported numpy's generator yet: then nothing had drawn from it either."""
    devices: Mapping[str, Tensor] = field(default_factory=dict)
    """Generators of accelerators, by device: `cuda:0`, `mps`."""

    @classmethod
    def capture(cls, devices: Iterable[torch.device | str | int] | None = None) -> RandomState:
        """Read all generators; of accelerators those given, else the current CUDA device and those of the model in training.

        CUDA is never initialised for it and no device is waited for: the generators live in host memory.
        """
        return cls(
            python=_python_reader.read(),
            cpu=torch.default_generator.get_state(),
            numpy=_numpy_reader.read(),
            devices=_device_states(devices),
        )

    def is_same(self, other: RandomState) -> bool:
        """Say whether it is known that nothing was drawn from one to the other."""
        return (
            self.python == other.python  # quick where nothing was drawn: then it is the same object, as numpy's is
            and self.numpy is other.numpy
            and torch.equal(self.cpu, other.cpu)
            and self.devices.keys() == other.devices.keys()
            and all(torch.equal(state, other.devices[name]) for name, state in self.devices.items())
        )

    def restore(self) -> None:
        """Put all generators back to where they stood."""
        random.setstate(self.python)
        torch.default_generator.set_state(self.cpu)
        if self.numpy is not None:
            # Imports nothing new, unless the state comes from another process.
            importlib.import_module("numpy.random").set_state(dict(self.numpy))
            _numpy_reader.forget()
        for name, state in self.devices.items():
            device = torch.device(name)
            if device.type == "mps":
                torch.mps.set_rng_state(state)
            else:
                # Waits in torch's queue where CUDA is not initialised yet.
                torch.cuda.set_rng_state(state, device)

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, lists and byte tensors alone, which `torch.load(weights_only=True)` accepts."""
        version, words, gauss = self.python
        return {
            "python": [version, list(words), gauss],
            "cpu": self.cpu.clone(),
            "numpy": None if self.numpy is None else _plain(self.numpy),
            "devices": {name: state.clone() for name, state in self.devices.items()},
        }

    def numbers(self) -> dict[str, Any]:
        """Return the same as plain JSON, with bytes as text, which is quick to write."""
        state = self.state_dict()
        devices = {name: as_text(value) for name, value in state["devices"].items()}
        return {**state, "cpu": as_text(state["cpu"]), "devices": devices}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RandomState:
        """Take what `state_dict` returned; its tensors may have become lists or text on the way through JSON."""
        version, words, gauss = state["python"]
        numpy = state["numpy"]
        return cls(
            python=(version, tuple(words), gauss),
            cpu=_bytes(state["cpu"]),
            numpy=None if numpy is None else dict(numpy),
            devices={name: _bytes(value) for name, value in state["devices"].items()},
        )


class _Reader(Generic[StateT]):
    """Reads a generator, and copies its state only when it has moved since the last time."""

    def __init__(self) -> None:
        self._known: tuple[object, StateT] | None = None

    def read(self) -> StateT:
        """Return the state; the same object as before where nothing was drawn since."""
        known, seen = self._known, self._look()
        if known is not None and known[0] == seen:  # what cannot be told is never known
            return known[1]
        state = self._copy()
        # What another thread has drawn in between belongs to neither.
        self._known = (seen, state) if seen is not None and self._look() == seen else None
        return state

    def forget(self) -> None:
        """Copy the state the next time, whatever the memory looks like."""
        self._known = None

    def _look(self) -> object:
        """Return what differs whenever the state does; None where that cannot be told."""
        raise NotImplementedError

    def _copy(self) -> StateT:
        raise NotImplementedError


class _PythonReader(_Reader["tuple[Any, ...]"]):
    """Reads python's generator. Its memory begins with the position in it, right behind what every object has.

    That is so since python 2.3, and is tried out before it is relied on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._generator = getattr(random.getstate, "__self__", None)
        address = self._find()
        self._memory = _memory_at(address) if address else None

    def _look(self) -> object:
        if self._memory is None:
            return None
        # Half of a pair of normal numbers is kept outside of that memory.
        return self._memory.raw, self._generator.gauss_next  # type: ignore[union-attr]

    def _copy(self) -> tuple[Any, ...]:
        return random.getstate()

    def _find(self) -> int:
        kind = type(self._generator)
        begin = object.__basicsize__
        if sys.implementation.name != "cpython" or kind is not random.Random:
            return 0
        if kind.__basicsize__ < begin + TWISTER_BYTES:
            return 0
        address = id(self._generator) + begin
        position, *words = struct.unpack("625I", ctypes.string_at(address, TWISTER_BYTES))
        return address if (*words, position) == random.getstate()[1] else 0


class _NumpyReader(_Reader["Mapping[str, Any] | None"]):
    """Reads numpy's global generator; None where nothing has imported it.

    One thing escapes it: somebody else putting the generator back to just before the second half of a pair of normal
    numbers, when that half was the last thing drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of: object = None
        self._memory: Any = None

    def read(self) -> Mapping[str, Any] | None:
        """Return the state as numpy gives it; the same object as before where nothing was drawn since."""
        state = super().read()
        if state is not None and state["has_gauss"]:  # that half is kept elsewhere: while it waits, nothing can be told
            self.forget()
        return state

    def _look(self) -> object:
        numpy: Any = sys.modules.get("numpy.random")
        generator: Any = numpy.get_bit_generator() if hasattr(numpy, "get_bit_generator") else None
        if generator is not self._of:  # kept, so that no other one can take its place in memory
            is_known = type(generator).__name__ == "MT19937"
            self._of, self._memory = generator, _memory_at(generator.ctypes.state_address) if is_known else None
        return None if self._memory is None else self._memory.raw

    def _copy(self) -> Mapping[str, Any] | None:
        numpy: Any = sys.modules.get("numpy.random")
        return None if numpy is None else numpy.get_state(legacy=False)


def _memory_at(address: int) -> ctypes.Array[ctypes.c_char]:
    """Return the memory of a generator; what `raw` copies of it is there much sooner than by `string_at`."""
    return (ctypes.c_char * TWISTER_BYTES).from_address(address)


_python_reader = _PythonReader()
_numpy_reader = _NumpyReader()


_of_models: WeakKeyDictionary[object, frozenset[torch.device]] = WeakKeyDictionary()
"""Devices of the models that are trained now, by who trains them."""
_watched: frozenset[torch.device] = frozenset()
"""All of them, but for the host."""


def draws_on(devices: Iterable[torch.device], owner: object) -> None:
    """Have the generators of these devices read too, until the owner names others or none.

    Said once for the whole process: what sets random numbers aside often does not know the model.
    """
    global _watched  # noqa: PLW0603  # read several times in every step
    _of_models[owner] = frozenset(devices)
    of_all = itertools.chain.from_iterable(list(_of_models.values()))
    _watched = frozenset(device for device in of_all if device.type != "cpu")


def devices_of(model: torch.nn.Module) -> set[torch.device]:
    """Return the devices that a model runs on: those of its parameters, and those that it is copied to for each step."""
    copied_to = [module.device_ids for module in model.modules() if isinstance(module, torch.nn.DataParallel)]
    return {p.device for p in model.parameters()} | {torch.device("cuda", i) for ids in copied_to for i in ids}


def _device_states(devices: Iterable[torch.device | str | int] | None) -> dict[str, Tensor]:
    if devices is None:
        # Asking for the current device would initialise CUDA, and a fork after that cannot use it.
        is_awake = torch.cuda.is_initialized()
        devices = {_cuda(torch.cuda.current_device()), *_watched} if is_awake else _watched
    states: dict[str, Tensor] = {}
    for given in devices:
        device = _cuda(given) if isinstance(given, int) else torch.device(given) if isinstance(given, str) else given
        if device.type == "cuda" and torch.cuda.is_initialized():
            index = torch.cuda.current_device() if device.index is None else device.index
            states[f"cuda:{index}"] = torch.cuda.default_generators[index].get_state()
        elif device.type == "mps":
            states["mps"] = torch.mps.get_rng_state()
    return states


@functools.cache
def _cuda(index: int) -> torch.device:
    """Return a device; this is asked for several times in every step."""
    return torch.device("cuda", index)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def as_text(state: Tensor) -> str:
    """Return the bytes of a generator's state as text."""
    return state.numpy().tobytes().hex()


def from_text(text: str) -> Tensor:
    """Take what `as_text` returned."""
    return _bytes(text)


def _bytes(value: Tensor | list[int] | str) -> Tensor:
    if isinstance(value, str):
        return torch.frombuffer(bytearray.fromhex(value), dtype=torch.uint8)
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.uint8)
    return tensor.detach().to("cpu", torch.uint8).clone()

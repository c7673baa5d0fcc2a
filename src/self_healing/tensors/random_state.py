"""All the random numbers that a training step may draw, set aside and put back.

A step is repeated exactly only if dropout, shuffling and augmentation draw the same numbers again. Reading the
generators took 44 microseconds on one CPU core (python 8, numpy 33, torch 1), so it can be done before every step;
where numpy has drawn nothing since the last time, which one look at its memory tells, 11.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor


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
            python=random.getstate(),
            cpu=torch.default_generator.get_state(),
            numpy=_numpy_reader.read(),
            devices=_device_states(devices),
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


class _NumpyReader:
    """Reads numpy's global generator, and copies its state only when it has moved.

    One thing escapes it: somebody else putting the generator back to just before the second half of a pair of normal
    numbers, when that half was the last thing drawn.
    """

    WORDS = 624
    """Size of the state of a Mersenne Twister, which is followed by its position, all in 32 bits."""

    def __init__(self) -> None:
        self._memory = b""
        self._state: Mapping[str, Any] | None = None

    def read(self) -> Mapping[str, Any] | None:
        """Return the state as numpy gives it; the same object as before where nothing was drawn since."""
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        memory = self._look(numpy)
        known = self._state
        # Half of a pair of normal numbers is kept outside of that memory: while it waits, nothing can be told.
        if known is None or not memory or memory != self._memory or known["has_gauss"]:
            self._memory, self._state = memory, numpy.get_state(legacy=False)
        return self._state

    def forget(self) -> None:
        """Copy the state the next time, whatever the memory looks like."""
        self._state = None

    def _look(self, numpy: Any) -> bytes:
        """Return the generator's memory, or nothing where it is not the usual generator."""
        generator: Any = numpy.get_bit_generator() if hasattr(numpy, "get_bit_generator") else None
        if type(generator).__name__ != "MT19937":
            return b""
        return ctypes.string_at(generator.ctypes.state_address, 4 * (self.WORDS + 1))


_numpy_reader = _NumpyReader()


_of_models: WeakKeyDictionary[object, frozenset[torch.device]] = WeakKeyDictionary()
"""Devices of the models that are trained now, by who trains them."""


def draws_on(devices: Iterable[torch.device], owner: object) -> None:
    """Have the generators of these devices read too, until the owner names others or none.

    Said once for the whole process: what sets random numbers aside often does not know the model.
    """
    _of_models[owner] = frozenset(devices)


def devices_of(model: torch.nn.Module) -> set[torch.device]:
    """Return the devices that a model runs on: those of its parameters, and those that it is copied to for each step."""
    copied_to = [module.device_ids for module in model.modules() if isinstance(module, torch.nn.DataParallel)]
    return {p.device for p in model.parameters()} | {torch.device("cuda", i) for ids in copied_to for i in ids}


def _device_states(devices: Iterable[torch.device | str | int] | None) -> dict[str, Tensor]:
    if devices is None:
        # Asking for the current device would initialise CUDA, and a fork after that cannot use it.
        current = [_cuda(torch.cuda.current_device())] if torch.cuda.is_initialized() else []
        devices = {*current, *itertools.chain.from_iterable(_of_models.values())}
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

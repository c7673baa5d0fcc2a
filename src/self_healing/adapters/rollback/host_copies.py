"""A batch as the host can keep it: never on the device, and shared with nobody who could write to it."""

from __future__ import annotations

import copy
import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ...core.containers import like
from .held_bytes import PLAIN, held_bytes, nbytes_of

SMALL_BYTES = 1 << 20
"""A batch up to this size takes the device 20 microseconds, less than the host needs to change streams."""


class HostCopy:
    """A copy of a batch in host memory, from which the batch can be made again as often as needed.

    Copied also where the batch is on the host already: losses take entries out of what they are given, some models
    write into it, and what workers deliver lies in shared memory and holds a file descriptor for each tensor.
    """

    __slots__ = ("_kept", "nbytes")

    def __init__(self, batch: Any) -> None:
        keeping = _Keeping()
        self._kept = _rebuilt(batch, keeping.leaf)
        keeping.send()
        self.nbytes = keeping.nbytes

    def batch(self) -> Any:
        """Return the batch as it was, on the devices it was on."""
        return _rebuilt(self._kept, _give_back_leaf)


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where the values of a tensor are kept; the tensor itself is made when it is asked for."""

    memory: Any
    shape: Any = None
    stride: tuple[int, ...] = ()
    begin: int | None = None
    """Where they begin in the memory; None where it is a tensor of their own."""

    @property
    def values(self) -> Any:
        """The tensor."""
        return self.memory if self.begin is None else self.memory.as_strided(self.shape, self.stride, self.begin)


@dataclass(frozen=True, slots=True, eq=False)
class _HostTensor:
    place: Place
    nbytes: int
    device: Any
    arrived: Mapping[Any, Any] | None = None
    """The event by device after which the values are complete, where a device still writes them."""

    def back(self) -> Any:
        import torch

        values = self.place.values
        if self.device.type == "cpu":
            return values.clone()
        if self.arrived is not None:  # the device waits for it, not the host
            torch.cuda.current_stream(self.device).wait_event(self.arrived[self.device])
        return values.to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class _HostObject:
    """Something that is no tensor but can be moved as one."""

    thing: Any
    device: Any

    def back(self) -> Any:
        again = copy.deepcopy(self.thing)
        return again if self.device is None else again.to(self.device)


class _Keeping:
    """Copies what one batch consists of; what lies on a device is sent all at once, since each change of stream takes time."""

    def __init__(self) -> None:
        self._arrived: dict[Any, Any] = {}
        self._to_send: dict[Any, list[tuple[Any, Any]]] = {}
        """By device: memory on the host, and the tensor that is copied into it."""
        self.nbytes = 0
        self._seen: set[int] = set()

    def leaf(self, leaf: Any) -> Any:
        """Return a copy of something in a batch, and count what it takes."""
        import torch

        if type(leaf) in PLAIN:  # lists of numbers have many
            self.nbytes += sys.getsizeof(leaf)
            return leaf
        if isinstance(leaf, torch.Tensor):
            tensor = self._tensor(leaf.detach() if leaf.requires_grad else leaf)
            self.nbytes += tensor.nbytes
            return tensor
        is_moved = callable(getattr(leaf, "to", None))
        device = getattr(leaf, "device", None) if is_moved else None
        kept = copy.deepcopy(leaf if device is None else leaf.to("cpu")) if is_moved else _copied_array(leaf)
        self.nbytes += held_bytes(kept, self._seen)
        return _HostObject(kept, device) if is_moved else kept

    def send(self) -> None:
        """Send everything on its way, and note when it will have arrived.

        To wait for the copy would be to wait for every step that the device still has before it: it is left to pinned
        memory, which the device can write without the host, and to a stream of its own where it takes the device long.
        """
        import torch

        for device, pairs in self._to_send.items():
            stream = torch.cuda.current_stream(device)
            if sum(values.nbytes for values, _ in pairs) <= SMALL_BYTES:
                for values, tensor in pairs:
                    values.copy_(tensor, non_blocking=True)
            else:
                computing, stream = stream, _copying_stream(device)
                stream.wait_stream(computing)
                with torch.cuda.stream(stream):
                    for values, tensor in pairs:
                        values.copy_(tensor, non_blocking=True)
                        tensor.record_stream(stream)
            self._arrived[device] = stream.record_event()

    def _tensor(self, tensor: Any) -> _HostTensor:
        import torch

        device = tensor.device
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized
        if not is_plain or tensor.is_nested or device.type not in {"cpu", "cuda"}:
            values = tensor.clone() if device.type == "cpu" else tensor.to("cpu")
            return _HostTensor(Place(values), nbytes_of(values), device)
        place = (_pinned if device.type == "cuda" else _pageable).place_for(tensor)
        kept = _HostTensor(place, tensor.nbytes, device, None if device.type == "cpu" else self._arrived)
        if device.type == "cpu":
            place.values.copy_(tensor)
        else:
            self._to_send.setdefault(device, []).append((place.values, tensor))
        return kept


class HostPool:
    """Memory on the host for many small tensors, in large chunks.

    To pin some for each takes longer than the step it is kept for. Pinning a chunk takes 20 milliseconds, which is left
    to another thread while the one before it is filled. And what is kept for hundreds of steps, each with memory of its
    own, would lie between what the steps themselves use and spread that over twice as many pages: forward and backward
    pass of a tiny model then take 8 % longer. A chunk is given back when the last tensor in it is gone.
    """

    CHUNK_BYTES = 32 << 20
    ALIGNED_BYTES = 64

    def __init__(self, *, pin: bool) -> None:
        self._pin = pin
        self._coming: SimpleQueue[Any] | None = None
        self._views: dict[Any, Any] = {}
        """The chunk that is being filled, by the dtype that it is looked at as."""
        self._used = self.CHUNK_BYTES

    def place_for(self, tensor: Any) -> Place:
        """Return memory for the values of a tensor."""
        import torch

        size = int(tensor.nbytes)
        if not size or size > self.CHUNK_BYTES // 4 or not tensor.is_contiguous():
            return Place(torch.empty_like(tensor, device="cpu", pin_memory=self._pin))
        if self._used + size > self.CHUNK_BYTES:
            self._views, self._used = {torch.uint8: self._next_chunk()}, 0
        dtype = tensor.dtype
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self._views[torch.uint8].view(dtype)
        begin = self._used // dtype.itemsize
        self._used += -(-size // self.ALIGNED_BYTES) * self.ALIGNED_BYTES
        if self._pin and self._coming is None and self._used > self.CHUNK_BYTES // 2:
            self._pin_ahead()
        return Place(view, tensor.shape, tensor.stride(), begin)

    def _next_chunk(self) -> Any:
        coming, self._coming = self._coming, None
        chunk = None if coming is None else coming.get()
        return self._new_chunk() if chunk is None else chunk

    def _pin_ahead(self) -> None:
        from ...tensors.arrivals import pinning

        coming: SimpleQueue[Any] = SimpleQueue()
        self._coming = coming

        def pin() -> None:
            try:
                coming.put(self._new_chunk())
            except (MemoryError, RuntimeError):  # whoever needs it asks again, and can answer for it
                coming.put(None)

        pinning.do(pin)

    def _new_chunk(self) -> Any:
        import torch

        return torch.empty(self.CHUNK_BYTES, dtype=torch.uint8, pin_memory=self._pin)


_CONTAINERS = (dict, list, tuple, UserDict, Mapping)
_pinned, _pageable = HostPool(pin=True), HostPool(pin=False)
_streams: dict[Any, Any] = {}


def _copying_stream(device: Any) -> Any:
    import torch

    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def _give_back_leaf(leaf: Any) -> Any:
    return leaf.back() if isinstance(leaf, _HostTensor | _HostObject) else _copied_array(leaf)


def _copied_array(leaf: Any) -> Any:
    """Return a copy of a numpy array; anything else is taken for something that nobody writes to, such as text."""
    return leaf.copy() if type(leaf).__module__ == "numpy" and hasattr(leaf, "copy") else leaf


def _rebuilt(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return containers made anew all the way down, with `of` applied to what they hold."""
    if type(value) is dict:  # as nearly all are, in every step
        return {key: _rebuilt(inner, of) for key, inner in value.items()}
    if not isinstance(value, _CONTAINERS):
        return of(value)
    if isinstance(value, UserDict):  # what tokenizers and processors return
        other = copy.copy(value)
        # All of it: beside its data a tokenizer's has encodings.
        vars(other).update({name: _rebuilt(inner, of) for name, inner in vars(value).items()})
        return other
    if isinstance(value, Mapping):
        return like(value, [(key, _rebuilt(inner, of)) for key, inner in value.items()])
    if isinstance(value, tuple):
        inner = [_rebuilt(each, of) for each in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return [_rebuilt(each, of) for each in value]

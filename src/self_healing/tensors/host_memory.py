"""Host memory for snapshots: plain, or pinned, so that a device writes it without the host; and what it holds, hashed.

Pinned memory is registered by us rather than taken from torch's own allocator: that one rounds each request up to a
power of two, 42 GB to 64, and never gives it back. Both kinds can be memory that other processes find as a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
import xxhash
from torch import Tensor

logger = logging.getLogger("self_healing.snapshots")

SLICE_BYTES = 64 << 20
"""What one hash covers, so that several threads can look at the same block."""
HASHED_AT_ONCE_BYTES = 8 << 20
"""How much is hashed in one call: versions of xxhash that hold python's lock meanwhile hold it for a millisecond."""
PAGE_BYTES = 2 << 20
"""A huge page."""
MOST_THREADS = 8
PORTABLE = 1
"""The flag with which registered memory is pinned for all devices."""


class SharedBlock(Protocol):
    """Memory that is a file too."""

    @property
    def name(self) -> str:
        """What the file is called."""

    @property
    def memory(self) -> mmap.mmap:
        """The memory."""


class Backing(Protocol):
    """Where a slot has its memory from, so that others find what is in it."""

    def allocate(self, nbytes: int) -> SharedBlock | None:
        """Return memory, None where there is no more."""

    def give_back(self, name: str) -> None:
        """Take memory back that cannot be used, by the name of its file."""

    def withdraw(self) -> None:
        """Have nobody find what is in it: it is about to be written to."""

    def discard(self) -> None:
        """Let go of the memory."""


class HostBlock:
    """A stretch of host memory that is kept as long as the slot it belongs to."""

    def __init__(self, nbytes: int, *, pinned: bool, backing: Backing | None = None) -> None:
        self.devices: set[torch.device] = set()
        """The devices that may be writing to it or reading from it."""
        self.is_for_devices = pinned
        """Whether it was meant to be pinned, which is refused now and then."""
        shared = backing.allocate(nbytes) if backing is not None else None
        memory = None if shared is None else shared.memory
        values = _registered(nbytes, memory) if pinned else None if memory is None else _mapped(memory)
        self.is_registered = pinned and values is not None
        if shared is not None and backing is not None and values is None:  # the device does not take it
            backing.give_back(shared.name)
            shared = None
        self.file = shared.name if shared is not None else None
        """What other processes find it by, None where they do not."""
        self.bytes: Tensor = _from_torch(nbytes, pinned=pinned) if values is None else values
        self.is_pinned = self.is_registered or (pinned and self.bytes.is_pinned())
        if self.is_registered:
            unpin = weakref.finalize(self, _unregister, self.bytes, self.devices, os.getpid())
            unpin.atexit = False  # a process that ends gives everything back by itself

    @property
    def capacity(self) -> int:
        """How many bytes it has."""
        return self.bytes.numel()

    def slices(self, used: int) -> list[memoryview]:
        """Return the bytes that are in use, in pieces."""
        whole = memoryview((ctypes.c_ubyte * used).from_address(self.bytes.data_ptr())) if used else memoryview(b"")
        return [whole[start : start + SLICE_BYTES] for start in range(0, used, SLICE_BYTES)]


def hashes_one_by_one(slices: Sequence[memoryview]) -> Iterator[int]:
    """Hash slices of memory in this thread; python's lock is free meanwhile."""
    return map(_hash, slices)


def hashes_at_once(slices: Sequence[memoryview]) -> list[int]:
    """Hash slices of memory with several threads, for somebody who waits for it."""
    threads = min(MOST_THREADS, os.cpu_count() or 1, len(slices))
    if threads <= 1:
        return list(hashes_one_by_one(slices))
    with ThreadPoolExecutor(threads, thread_name_prefix="snapshot-hash") as pool:
        return list(pool.map(_hash, slices))


def _hash(memory: memoryview) -> int:
    digest = xxhash.xxh3_64()
    for start in range(0, len(memory), HASHED_AT_ONCE_BYTES):
        digest.update(memory[start : start + HASHED_AT_ONCE_BYTES])
    return digest.intdigest()


# -- pinning ---------------------------------------------------------------------------------------------


_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_of_parent: list[mmap.mmap] = []
"""What a process that was forked has no part in: to give it back would free whatever lies there in the child."""


def _keep_in_child() -> None:
    _of_parent.extend(_maps)


os.register_at_fork(after_in_child=_keep_in_child)


def _mapped(memory: mmap.mmap) -> Tensor:
    _maps.add(memory)
    # Not for workers that are forked: a child would be given a copy of all of it. Huge pages are pinned faster.
    for advice in (mmap.MADV_DONTFORK, mmap.MADV_HUGEPAGE):
        with contextlib.suppress(OSError):
            memory.madvise(advice)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _registered(nbytes: int, memory: mmap.mmap | None = None) -> Tensor | None:
    """Return memory that is registered with the device, None where that is refused."""
    nbytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES if memory is None else len(memory)
    try:
        memory = memory or mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        logger.warning("%d bytes of host memory could not be had: %s", nbytes, error)
        return None
    values = _mapped(memory)
    values.fill_(0)  # by all threads; the driver would touch the pages one after the other
    refused = int(torch.cuda.cudart().cudaHostRegister(values.data_ptr(), nbytes, PORTABLE))
    if refused == 0:
        return values
    logger.warning("%d bytes of host memory could not be registered (CUDA error %d)", nbytes, refused)
    # The runtime keeps the error for whoever launches the next kernel, who would take it for its own.
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)
    return None


def _unregister(memory: Tensor, devices: set[torch.device], process: int) -> None:
    if os.getpid() != process:  # a worker that was forked has none of it
        return
    with contextlib.suppress(RuntimeError):  # a device that has failed writes no more
        for device in devices:
            torch.cuda.synchronize(device)
        torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())


def _from_torch(nbytes: int, *, pinned: bool) -> Tensor:
    if pinned:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            logger.warning("no pinned memory: snapshots wait for the device (%s)", error)
    return torch.empty(nbytes, dtype=torch.uint8)

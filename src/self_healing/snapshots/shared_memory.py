"""States of a run in shared memory, where they outlive the process: memory that is written to, and an index for each.

The memory of a state is one or more files that are mapped; what is published of it is one small file, put in place by
a rename and removed before the memory is written to again. So whoever finds an index finds what it speaks of, unless
the process ended in between, or the memory was harmed: that is what its checksums are for. Several states are kept in
turns, so that one is there while another one is being written.
"""

from __future__ import annotations

import logging
import mmap
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from .budget import free_memory
from .shared_folder import STATE, Lock, OwnFolder, clean, dead_runs, remove_run, root_path, take_run
from .shared_index import StateIndex, Tensors, TensorText, encoded

logger = logging.getLogger("self_healing.snapshots")

FRACTION = 0.5
_AT_ONCE_BYTES = 256 << 20
"""How much is asked for at once: a request that a signal interrupts begins again."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedBlock:
    """Memory that is a file too."""

    name: str
    memory: mmap.mmap


class SharedRun:
    """The folder of a running training in shared memory; it ends with `remove`, `leave`, or the process."""

    def __init__(self, name: str, root: OwnFolder, folder: OwnFolder, lock: Lock, *, fraction: float) -> None:
        """Take over a folder that is open and locked; use `open` to get one."""
        self.name = name
        self.fraction = fraction
        self._root = root
        self._folder = folder
        self._lock = lock
        self._attempt = secrets.token_hex(4)
        self._process = os.getpid()
        self._count = 0
        self._nbytes = 0
        self._slots: list[SharedSlot] = []
        self._has_published = False
        self._is_over = False
        self._changing = threading.Lock()

    @classmethod
    def open(cls, name: str, *, base: Path | None = None, fraction: float = FRACTION) -> Self:
        """Take the folder of a run, and clean up after runs that are dead.

        Args:
            name: What the run is called, see `run_name`.
            base: A folder in memory; `/dev/shm` where none is given.
            fraction: How much of what is free there the run may take.

        Raises:
            SharedMemoryError: it cannot be had; the text says why.

        """
        root, folder, lock = take_run(root_path(base), name)
        for removed in clean(root, besides=name):
            logger.info("what the dead run %s had left in shared memory was removed", removed)
        return cls(name, root, folder, lock, fraction=fraction)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._folder.path

    @property
    def is_over(self) -> bool:
        """Whether nothing can be done with it any more: it was given up, or belongs to the parent of this process."""
        return self._is_over or os.getpid() != self._process

    # -- memory --------------------------------------------------------------------------------------

    def states_of(self, nbytes: int) -> int:
        """Return how many more states of a size have room, once everything that dead runs have left is removed."""
        left = sum(dead.nbytes for dead in dead_runs(self._root, besides=self.name)) + self._nbytes_of_former()
        return max(0, int(self._allowed(left)) // max(1, nbytes))

    def _allowed(self, more_free: int = 0) -> float:
        return self.fraction * (free_bytes(self._folder) + self._nbytes + more_free) - self._nbytes

    def allocate(self, nbytes: int) -> SharedBlock | None:
        """Return new memory, all of it there: what is missing later would end the process. None where there is none."""
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if self.is_over or nbytes <= 0 or not self._make_room(nbytes):
            return None
        with self._changing:
            self._count += 1
            name = f"{self._attempt}.block-{self._count}"
        try:
            descriptor = self._folder.create(name)
        except OSError as error:
            logger.warning("no shared memory: %s", error)
            return None
        try:
            os.ftruncate(descriptor, nbytes)
            for start in range(0, nbytes, _AT_ONCE_BYTES):
                os.posix_fallocate(descriptor, start, min(_AT_ONCE_BYTES, nbytes - start))
            memory = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        except OSError as error:
            self._folder.remove(name)
            logger.warning("%d bytes of shared memory could not be had: %s", nbytes, error)
            return None
        finally:
            os.close(descriptor)
        with self._changing:
            self._nbytes += nbytes
        return SharedBlock(name, memory)

    def discard(self, block: SharedBlock) -> None:
        """Remove the file of a block; its memory is given back when nobody uses it any more."""
        if not self.is_over:
            self._folder.remove(block.name)
            with self._changing:
                self._nbytes -= len(block.memory)

    def _make_room(self, nbytes: int) -> bool:
        """Say whether there is room; what dead runs have left makes way for it, the oldest first, our own at last."""
        if nbytes <= self._allowed():
            return True
        for dead in dead_runs(self._root, besides=self.name):
            remove_run(self._root, dead.name)
            if nbytes <= self._allowed():
                return True
        self._forget_former()
        return nbytes <= self._allowed()

    # -- states --------------------------------------------------------------------------------------

    def slot(self) -> SharedSlot:
        """Return a place for one state after the other."""
        with self._changing:
            self._count += 1
            slot = SharedSlot(self, f"{self._attempt}.state-{self._count}.json")
        self._slots.append(slot)
        return slot

    def forget(self, slot: SharedSlot) -> None:
        """Take note that a slot is not used any more."""
        if slot in self._slots:
            self._slots.remove(slot)

    def write_aside(self, name: str, content: bytes) -> str:
        """Write a file under another name and return that.

        Raises:
            OSError: there is no room for it.

        """
        temporary = f"{name}.tmp"
        descriptor = self._folder.create(temporary)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            self._folder.remove(temporary)
            raise
        return temporary

    def put_in_place(self, temporary: str, name: str) -> None:
        """Give a file its name, at once; what earlier attempts have left is not needed once a state is there."""
        self._folder.rename(temporary, name)
        if not self._has_published:
            self._has_published = True
            self._forget_former()

    def take_away(self, name: str) -> None:
        """Remove an index."""
        if not self.is_over:
            self._folder.remove(name)

    def forget_former(self) -> None:
        """Remove what earlier attempts of this run have left."""
        with self._changing:
            self._forget_former()

    def _former(self) -> list[str]:
        return [each for each in self._folder.names() if "." in each and not each.startswith(self._attempt)]

    def _forget_former(self) -> None:
        """Remove what earlier attempts of this run have left: the indexes first, which speak of the rest."""
        for name in sorted(self._former(), key=lambda each: ".block-" in each):
            self._folder.remove(name)

    def _nbytes_of_former(self) -> int:
        return self._folder.nbytes() - self._nbytes if self._former() else 0

    # -- the end -------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Remove everything: the run has ended well."""
        if not self.is_over:
            self._is_over = True
            remove_run(self._root, self.name, lock=self._lock)

    def leave(self) -> None:
        """Leave what is published to the next attempt, with the memory it lies in, and nothing else."""
        if self.is_over:
            return
        for slot in [each for each in self._slots if not each.is_published]:
            slot.discard()
        if not any(STATE.fullmatch(name) for name in self._folder.names()):
            self.remove()
            return
        self._is_over = True
        self._lock.release()


class SharedSlot:
    """Where one state after the other lies; of each there is an index as long as it is there."""

    def __init__(self, run: SharedRun, name: str) -> None:
        self.run = run
        self._name = name
        self._blocks: list[SharedBlock] = []
        self._ticket: object = None
        self._is_published = False
        self._text = TensorText()
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> SharedBlock | None:
        """Return memory for it, None where there is no room."""
        block = self.run.allocate(nbytes)
        if block is not None:
            self._blocks.append(block)
        return block

    def give_back(self, name: str) -> None:
        """Take memory back that cannot be used."""
        for block in [each for each in self._blocks if each.name == name]:
            self._blocks.remove(block)
            self.run.discard(block)

    @property
    def is_published(self) -> bool:
        """Whether others can find what is in it."""
        return self._is_published

    def ticket(self) -> object:
        """Return what the next state is published with; it is no longer valid once the slot is withdrawn."""
        self._ticket = object()
        return self._ticket

    def publish(self, ticket: object, index: StateIndex, fixed: Tensors, others: Tensors, log: str = "[]") -> bool:
        """Have others find a state, from any thread; say whether they do: it may have been withdrawn meanwhile.

        Raises:
            ValueError: it cannot be described.
            OSError: the index cannot be written.

        """
        if self._ticket is not ticket or self.run.is_over:
            return False
        temporary = self.run.write_aside(self._name, encoded(index, self._text.of(fixed, others), log))
        with self._lock:
            self._is_published = self._ticket is ticket and not self.run.is_over
            if self._is_published:
                self.run.put_in_place(temporary, self._name)
            else:
                self.run.take_away(temporary)
        return self._is_published

    def withdraw(self, only: object = None) -> None:
        """Have nobody find it any more: its memory is about to be written to, or it is not to be trusted.

        With a ticket only what was, or is to be, published with that one: whoever comes late withdraws nothing newer.
        """
        with self._lock:
            if only is not None and self._ticket is not only:
                return
            self._ticket = None
            if self._is_published:
                self.run.take_away(self._name)
                self._is_published = False

    def discard(self) -> None:
        """Give its memory back; it cannot be used any more."""
        self.withdraw()
        self.run.forget(self)
        for block in self._blocks:
            self.run.discard(block)
        self._blocks.clear()


def free_bytes(folder: OwnFolder) -> int:
    """Return what can still be written to a folder in memory: no more than the machine, or the container, has free."""
    status = os.fstatvfs(folder.descriptor)
    free = free_memory()
    return min(free, status.f_bavail * status.f_frsize) if status.f_blocks else free

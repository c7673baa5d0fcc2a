"""Memory for another snapshot is made ready by a thread of its own, and whoever needs it waits no longer than that."""

from __future__ import annotations

import mmap
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from self_healing.tensors.coming_slot import ComingSlot  # noqa: E402

pytestmark = pytest.mark.torch

SIZE = 4 << 20


class SlowBacking:
    """Gives memory when it is told to, and remembers who asked for it."""

    def __init__(self, *, fails=False):
        self.may_go_on = threading.Event()
        self.fails = fails
        self.asked_by = []

    def allocate(self, nbytes):
        self.asked_by.append(threading.current_thread().name)
        self.may_go_on.wait()
        if self.fails:
            raise OSError(28, "no space left")
        return SimpleNamespace(name="block-1", memory=mmap.mmap(-1, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE))

    def give_back(self, name):
        """Nothing of it is kept."""

    def withdraw(self):
        """Nobody was told of it."""

    def discard(self):
        """Nothing of it is kept."""


def test_what_cannot_be_had_in_advance_is_asked_for_again_by_whoever_needs_it():
    backing = SlowBacking(fails=True)
    coming = ComingSlot(backing, SIZE)
    assert not coming.is_there()
    backing.may_go_on.set()
    slot = coming.slot()
    assert coming.is_there()
    assert slot.nbytes == 0
    backing.fails = False
    slot.reserve(SIZE, pinned=False)
    assert slot.nbytes >= SIZE
    assert backing.asked_by == ["memory-is-pinned", "MainThread"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_it_is_pinned_when_it_comes():
    backing = SlowBacking()
    coming = ComingSlot(backing, SIZE)
    assert not coming.is_there()
    backing.may_go_on.set()
    slot = coming.slot()
    assert slot.nbytes >= SIZE
    assert slot.is_shared
    slot.reserve(SIZE, pinned=True)
    assert backing.asked_by == ["memory-is-pinned"], "nothing more is needed"
